//go:build cgo && linux

package dcgmreceiver

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// RTLD_GLOBAL: go-dcgm's calls are left undefined at link time and bound in the global scope.
static void *open_dcgm(const char *path, char **err)
{
	void *h = dlopen(path, RTLD_LAZY | RTLD_GLOBAL);
	*err = h ? NULL : dlerror();
	return h;
}

static void *symbol(void *h, const char *name) { return dlsym(h, name); }
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"
)

const libraryName = "libdcgm.so.4"

// needed are the functions that this receiver makes go-dcgm call. One that the library lacks would end the process at its first
// call, so they are looked for before anything is called.
var needed = []string{
	"dcgmInit", "dcgmShutdown", "errorString", "dcgmStartEmbedded", "dcgmStopEmbedded", "dcgmConnect_v2", "dcgmDisconnect",
	"dcgmHostengineVersionInfo", "DcgmFieldGetById", "dcgmGetAllSupportedDevices", "dcgmGetEntityGroupEntities", "dcgmGetGpuStatus",
	"dcgmGetNvLinkLinkStatus", "dcgmGetGpuInstanceHierarchy", "dcgmGetDeviceTopology", "dcgmProfGetSupportedMetricGroups", "dcgmGroupCreate", "dcgmGroupDestroy", "dcgmGroupAddEntity", "dcgmGroupGetInfo", "dcgmFieldGroupCreate",
	"dcgmFieldGroupDestroy", "dcgmWatchFields", "dcgmUnwatchFields", "dcgmUpdateAllFields", "dcgmEntitiesGetLatestValues",
	"dcgmHealthSet", "dcgmHealthCheck", "dcgmPolicyGet", "dcgmPolicySet", "dcgmPolicyRegister_v2", "dcgmPolicyUnregister",
}

var library struct {
	sync.Mutex
	handle unsafe.Pointer
}

// openLibrary loads libdcgm once, for the life of the process: it is never unloaded, since a late callback of a thread of its own
// must find its code. A path loads that file; go-dcgm then finds it by its name, as it is loaded already.
func openLibrary(path string) error {
	library.Lock()
	defer library.Unlock()
	if library.handle != nil {
		return nil
	}
	if path == "" {
		path = libraryName
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why *C.char
	h := C.open_dcgm(name, &why)
	if h == nil {
		return fmt.Errorf("%s cannot be loaded (%s): install DCGM 4 (package datacenter-gpu-manager-4-core), or set library to its path", path, C.GoString(why))
	}
	var missing []string
	for _, f := range needed {
		c := C.CString(f)
		if C.symbol(h, c) == nil {
			missing = append(missing, f)
		}
		C.free(unsafe.Pointer(c))
	}
	if len(missing) > 0 {
		C.dlclose(h)
		return fmt.Errorf("%s lacks %s: it is older than this receiver: install DCGM 4.2 or later", path, strings.Join(missing, ", "))
	}
	library.handle = h
	return nil
}

// symbol finds a function of the library; nil where it is not loaded or has none.
func symbol(name string) unsafe.Pointer {
	library.Lock()
	defer library.Unlock()
	if library.handle == nil {
		return nil
	}
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.symbol(library.handle, c)
}
