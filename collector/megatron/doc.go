// Package megatron is a processor for the second door of training signals: what Megatron-Core and NeMo Lens tell over OTLP as
// megatron.training.* is told again under Pitcrew's own names (table in this package and in docs/training.md), so that one set of
// dashboards and judgements serves both doors. The originals pass beside them, and nothing else passes: what training processes can reach
// must not be where somebody says that a GPU is broken, nor anything of another node, attempt or boot.
//
// It promises bounded memory whatever is sent, and that what cannot be told (a rank without a number, a throughput of the whole job
// without its number of ranks) gives no point, never a guess.
package megatron
