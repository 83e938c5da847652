"""What kind of file system a descriptor is on.

The ring belongs in memory: a store to a mapped file on a disk can wait for the disk.

No torch here.
"""

import ctypes

IN_MEMORY = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}
ON_DISK = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0x794C7630: "overlay",
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0x01021997: "9p",
    0x65735546: "fuse",
    0x0BD00BD0: "lustre",
}  # statfs(2)
_libc = ctypes.CDLL(None, use_errno=True)


def not_in_memory(fd):
    """The name of fd's file system if it is not in memory, else None. Unknown counts as not in memory."""
    answer = (ctypes.c_long * 64)()  # struct statfs begins with f_type
    if _libc.fstatfs(fd, answer) != 0:
        return "unknown"
    kind = answer[0] & 0xFFFFFFFF
    return None if kind in IN_MEMORY else ON_DISK.get(kind, "0x%x" % kind)
