"""The protections, removed: without one of them the property must not hold."""

from pitcrew_torch import checkpoint, claims, custody, storage


def without_retry():
    storage.DELAYS = storage.IN_A_STEP = ()


def without_fence():
    claims.Claim.check = lambda self: None


def without_read_only():
    original = custody.Custody.resume

    def resume(self, load_fn, accepts, fresh=False, read_only=False):
        return original(self, load_fn, accepts, fresh, False)

    custody.Custody.resume = resume


def errors_as_damage():
    """As it was before: an unreadable file is a damaged one."""

    def verify(path, files, progress=None):
        try:
            original(path, files, progress)
        except OSError as error:
            raise checkpoint.Damaged(str(error)) from error

    original, checkpoint.verify = checkpoint.verify, verify


BREAKS = {
    "retry": without_retry,
    "fence": without_fence,
    "read-only": without_read_only,
    "damage": errors_as_damage,
}
