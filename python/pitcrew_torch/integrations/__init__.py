"""Training frameworks that own the training loop. Each module replaces one call: `trainer.train()` or `trainer.fit()`.

A framework knows more than the weights: its step counter, its place in the data, its callbacks. These modules save and
restore a checkpoint in the framework's own format, so that training goes on as if it had not been interrupted.
"""
