//go:build cgo && linux

package dcgmreceiver

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// NVML's stable calls, by the signatures of nvml.h: a device is an opaque pointer, 0 is success.
typedef void *device;
static int (*nv_init)(void);
static int (*nv_by_uuid)(const char *, device *);
static int (*nv_count)(device, unsigned *);
static int (*nv_mig)(device, unsigned, device *);
static int (*nv_uuid)(device, char *, unsigned);
static int (*nv_gi)(device, unsigned *);
static int (*nv_ci)(device, unsigned *);

// Loads the library, apart from whatever else is loaded, and starts it. Returns what went wrong.
static const char *nvml_open(const char *path)
{
	struct { const char *name; void **at; } calls[] = {
		{"nvmlInit_v2", (void **)&nv_init},
		{"nvmlDeviceGetHandleByUUID", (void **)&nv_by_uuid},
		{"nvmlDeviceGetMaxMigDeviceCount", (void **)&nv_count},
		{"nvmlDeviceGetMigDeviceHandleByIndex", (void **)&nv_mig},
		{"nvmlDeviceGetUUID", (void **)&nv_uuid},
		{"nvmlDeviceGetGpuInstanceId", (void **)&nv_gi},
		{"nvmlDeviceGetComputeInstanceId", (void **)&nv_ci},
	};
	void *h = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	if (!h)
		return dlerror();
	for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
		if (!(*calls[i].at = dlsym(h, calls[i].name)))
			return calls[i].name;
	return nv_init() ? "nvmlInit_v2 failed" : NULL;
}

static int nvml_device(const char *uuid, device *d, unsigned *count)
{
	int r = nv_by_uuid(uuid, d);
	return r ? r : nv_count(*d, count);
}

// One MIG device of a GPU; an index without one is not 0.
static int nvml_part(device d, unsigned index, unsigned *gi, unsigned *ci, char *uuid, unsigned length)
{
	device mig;
	int r = nv_mig(d, index, &mig);
	if (!r) r = nv_gi(mig, gi);
	if (!r) r = nv_ci(mig, ci);
	if (!r) r = nv_uuid(mig, uuid, length);
	return r;
}
*/
import "C"

import (
	"errors"
	"strings"
	"unsafe"
)

const nvmlName = "libnvidia-ml.so.1"

// nvml asks the driver which MIG device is which part of a GPU: DCGM tells the parts, and a pod is given a UUID. It is loaded when a
// card is divided and DCGM has not told, and never unloaded.
type nvml struct {
	tried bool
	err   error
}

// open loads the library once.
func (n *nvml) open(path string) error {
	if n.tried {
		return n.err
	}
	n.tried = true
	if path == "" {
		path = nvmlName
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if why := C.nvml_open(name); why != nil {
		n.err = errors.New(C.GoString(why))
	}
	return n.err
}

// part is a MIG device by NVML's numbers.
type part struct{ gi, ci uint }

// maxMIG bounds the MIG devices of one GPU that are asked for, whatever the driver says.
const maxMIG = 64

// parts lists the MIG devices of a GPU by their UUIDs. The library must be open.
func (*nvml) parts(gpu string) map[part]string {
	uuid := C.CString(gpu)
	defer C.free(unsafe.Pointer(uuid))
	var d C.device
	var count C.uint
	if C.nvml_device(uuid, &d, &count) != 0 {
		return nil
	}
	out := map[part]string{}
	var name [96]C.char
	for i := range min(count, maxMIG) {
		var gi, ci C.uint
		if C.nvml_part(d, i, &gi, &ci, &name[0], C.uint(len(name))) != 0 {
			continue // indices have gaps
		}
		if s := C.GoString(&name[0]); strings.HasPrefix(s, "MIG-") {
			out[part{uint(gi), uint(ci)}] = s
		}
	}
	return out
}
