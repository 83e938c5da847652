"""NVML by ctypes: processes, ECC mode, throttle reasons, MIG. No pip, no pynvml.

A call that the card or the driver does not support gives None, never 0.
"""

import ctypes
import ctypes.util

from .figures import Missing

NAME = "libnvidia-ml.so.1"
NOT_SUPPORTED, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND = 3, 7, 13
MAX_PROCESSES = 1024


class Error(RuntimeError):
    def __init__(self, call, code):
        super().__init__("%s failed with NVML code %d" % (call, code))
        self.code = code


class _Process(ctypes.Structure):  # nvmlProcessInfo_t of the _v3 calls
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def load(path=NAME):
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise Missing("%s cannot be loaded (%s): install the NVIDIA driver" % (path, error)) from None


class NVML:
    """library: what `load` gives, or an object with NVML's functions as methods."""

    def __init__(self, library):
        self._library = library
        self._call("nvmlInit_v2")

    def _call(self, name, *args):
        code = getattr(self._library, name)(*args)
        if code:
            raise Error(name, code)

    def _optional(self, *calls):
        """The first of the calls that the library has and the card supports. None: none is."""
        for name, args, get in calls:
            try:
                self._call(name, *args)
            except AttributeError:
                continue
            except Error as error:
                if error.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                    continue
                raise
            return get()
        return None

    def devices(self):
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        handles = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            handles.append(handle)
        return handles

    def uuid(self, device):
        text = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetUUID", device, text, ctypes.c_uint(len(text)))
        return text.value.decode()

    def ecc(self, device):
        """Whether ECC is on now."""
        now, pending = ctypes.c_uint(), ctypes.c_uint()
        args = (device, ctypes.byref(now), ctypes.byref(pending))
        return self._optional(("nvmlDeviceGetEccMode", args, lambda: bool(now.value)))

    def mig(self, device):
        """Whether MIG is on now. None: the card has none."""
        now, pending = ctypes.c_uint(), ctypes.c_uint()
        args = (device, ctypes.byref(now), ctypes.byref(pending))
        return self._optional(("nvmlDeviceGetMigMode", args, lambda: bool(now.value)))

    def throttle(self, device):
        """The bits of the reasons that hold the clocks down now."""
        bits = ctypes.c_ulonglong()
        args = (device, ctypes.byref(bits))
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return self._optional(*[(name, args, lambda: bits.value) for name in names])

    def processes(self, device):
        """pids of the compute processes, as the driver counts them."""
        count, found = ctypes.c_uint(MAX_PROCESSES), (_Process * MAX_PROCESSES)()
        args = (device, ctypes.byref(count), found)
        get = lambda: sorted(found[n].pid for n in range(count.value))  # noqa: E731
        return self._optional(("nvmlDeviceGetComputeRunningProcesses_v3", args, get))


def read(library):
    """Each GPU's values by its UUID."""
    nvml = NVML(library)
    return {
        nvml.uuid(device): {
            "ecc": nvml.ecc(device),
            "mig": nvml.mig(device),
            "throttle": nvml.throttle(device),
            "processes": nvml.processes(device),
        }
        for device in nvml.devices()
    }
