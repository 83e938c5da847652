// Makes one file call of a process fail. Preloaded; a call counts if its thread has a rank and its path, or the path of its
// descriptor, is below the directory given to fault_arm. The n-th counted call of the chosen rank gets the fault; n = 0
// only counts.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { NONE, ERROR, CRASH, FULL, STALL };
#define RANKS 64
#define NAMES 8192

static char root[PATH_MAX];
static size_t root_length;
static int kind, number, at, victim, times;
static atomic_int counted[RANKS], stalled, let_go, hits;
static char (*log_of)[96];
static atomic_int logged;
static __thread int rank = -1;
static __thread int inside;

void fault_rank(int r) { rank = r; }
int fault_count(int r) { return atomic_load(&counted[r]); }
int fault_hits(void) { return atomic_load(&hits); }
int fault_stalled(void) { return atomic_load(&stalled); }
void fault_release(void) { atomic_store(&let_go, 1); }
const char *fault_name(int i) { return i < atomic_load(&logged) && i < NAMES ? log_of[i] : NULL; }

// fault_arm counts from 0 again. kind, errno, which call (1 is the first), of which rank, how many calls from there on fail.
void fault_arm(const char *directory, int k, int e, int n, int r, int repeat) {
	snprintf(root, sizeof root, "%s", directory);
	root_length = strlen(root);
	kind = k, number = e, at = n, victim = r, times = repeat;
	for (int i = 0; i < RANKS; i++) atomic_store(&counted[i], 0);
	atomic_store(&stalled, 0), atomic_store(&let_go, 0), atomic_store(&hits, 0), atomic_store(&logged, 0);
	if (!log_of) log_of = calloc(NAMES, sizeof *log_of);
}

static int below(int dirfd, const char *path, char *full) {
	char link[64];
	ssize_t n;
	if (path && path[0] == '/') {
		snprintf(full, PATH_MAX, "%s", path);
	} else {
		if (dirfd == AT_FDCWD) {
			if (!getcwd(full, PATH_MAX)) return 0;
		} else {
			snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
			if ((n = readlink(link, full, PATH_MAX - 1)) < 0) return 0;
			full[n] = 0;
		}
		if (path && path[0]) {
			size_t have = strlen(full);
			snprintf(full + have, PATH_MAX - have, "/%s", path);
		}
	}
	return strncmp(full, root, root_length) == 0;
}

// strike returns an errno for the call to fail with, or 0 for the call to go on. writes: the call can need space.
static int strike(const char *call, int dirfd, const char *path, int writes) {
	char full[PATH_MAX];
	if (rank < 0 || rank >= RANKS || inside || !root_length) return 0;
	inside = 1;
	int before = errno, result = 0;
	if (below(dirfd, path, full)) {
		int n = atomic_fetch_add(&counted[rank], 1) + 1;
		int l = atomic_fetch_add(&logged, 1);
		if (log_of && l < NAMES) snprintf(log_of[l], sizeof *log_of, "%d %d %s %.70s", rank, n, call, full + root_length);
		if (at && rank == victim && n >= at && n < at + times) {
			switch (kind) {
			case ERROR:
				atomic_fetch_add(&hits, 1);
				result = number;
				break;
			case CRASH:
				_exit(99);
			case FULL: // from here on the disk has no room
				if (writes) atomic_fetch_add(&hits, 1), result = ENOSPC;
				break;
			case STALL:
				atomic_fetch_add(&hits, 1);
				atomic_store(&stalled, 1);
				while (!atomic_load(&let_go)) poll(NULL, 0, 1);
				break;
			}
		}
	}
	inside = 0;
	errno = before;
	return result;
}

#define REAL(name) \
	static __typeof__(&name) real; \
	if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL(value) \
	do { \
		errno = e; \
		return value; \
	} while (0)

#define OPEN(name) \
	int name(const char *path, int flags, ...) { \
		REAL(name); \
		va_list args; \
		va_start(args, flags); \
		mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0; \
		va_end(args); \
		int e = strike("open", AT_FDCWD, path, flags & O_CREAT); \
		if (e) FAIL(-1); \
		return real(path, flags, mode); \
	}
#define OPENAT(name) \
	int name(int dirfd, const char *path, int flags, ...) { \
		REAL(name); \
		va_list args; \
		va_start(args, flags); \
		mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0; \
		va_end(args); \
		int e = strike("openat", dirfd, path, flags & O_CREAT); \
		if (e) FAIL(-1); \
		return real(dirfd, path, flags, mode); \
	}
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define CALL(type, name, parameters, arguments, dirfd, path, writes) \
	type name parameters { \
		REAL(name); \
		int e = strike(#name, dirfd, path, writes); \
		if (e) FAIL(-1); \
		return real arguments; \
	}
CALL(int, stat, (const char *p, struct stat *s), (p, s), AT_FDCWD, p, 0)
CALL(int, stat64, (const char *p, struct stat64 *s), (p, s), AT_FDCWD, p, 0)
CALL(int, lstat, (const char *p, struct stat *s), (p, s), AT_FDCWD, p, 0)
CALL(int, lstat64, (const char *p, struct stat64 *s), (p, s), AT_FDCWD, p, 0)
CALL(int, fstatat, (int d, const char *p, struct stat *s, int f), (d, p, s, f), d, p, 0)
CALL(int, fstatat64, (int d, const char *p, struct stat64 *s, int f), (d, p, s, f), d, p, 0)
CALL(int, statx, (int d, const char *p, int f, unsigned m, struct statx *s), (d, p, f, m, s), d, p, 0)
CALL(int, fstat, (int d, struct stat *s), (d, s), d, NULL, 0)
CALL(int, fstat64, (int d, struct stat64 *s), (d, s), d, NULL, 0)
CALL(int, mkdir, (const char *p, mode_t m), (p, m), AT_FDCWD, p, 1)
CALL(int, rmdir, (const char *p), (p), AT_FDCWD, p, 0)
CALL(int, unlink, (const char *p), (p), AT_FDCWD, p, 0)
CALL(int, unlinkat, (int d, const char *p, int f), (d, p, f), d, p, 0)
CALL(int, rename, (const char *a, const char *b), (a, b), AT_FDCWD, a, 1)
CALL(int, link, (const char *a, const char *b), (a, b), AT_FDCWD, a, 1)
CALL(int, access, (const char *p, int m), (p, m), AT_FDCWD, p, 0)
CALL(int, fsync, (int d), (d), d, NULL, 1)
CALL(int, close, (int d), (d), d, NULL, 1)
CALL(ssize_t, read, (int d, void *b, size_t n), (d, b, n), d, NULL, 0)
CALL(off_t, lseek, (int d, off_t o, int w), (d, o, w), d, NULL, 0)
CALL(off64_t, lseek64, (int d, off64_t o, int w), (d, o, w), d, NULL, 0)

// write takes half of what it is given before a crash, so that torn files come to be.
ssize_t write(int d, const void *b, size_t n) {
	REAL(write);
	if (at && kind == CRASH && rank == victim && !inside && n > 1 && atomic_load(&counted[rank]) + 1 == at) {
		char full[PATH_MAX];
		inside = 1;
		if (below(d, NULL, full)) real(d, b, n / 2);
		inside = 0;
	}
	int e = strike("write", d, NULL, 1);
	if (e) FAIL(-1);
	return real(d, b, n);
}

DIR *opendir(const char *p) {
	REAL(opendir);
	int e = strike("opendir", AT_FDCWD, p, 0);
	if (e) FAIL(NULL);
	return real(p);
}

DIR *fdopendir(int d) {
	REAL(fdopendir);
	int e = strike("fdopendir", d, NULL, 0);
	if (e) FAIL(NULL);
	return real(d);
}

#define READDIR(type, name) \
	struct type *name(DIR *directory) { \
		REAL(name); \
		int e = strike(#name, dirfd(directory), NULL, 0); \
		if (e) FAIL(NULL); \
		return real(directory); \
	}
READDIR(dirent, readdir)
READDIR(dirent64, readdir64)
