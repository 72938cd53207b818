/* Lets the n-th call that writes under a folder fail. Preloaded, so that LMDB, Arrow and Python itself meet it alike. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FAILS, STAYS, SHORT, LOST };
static char folder[PATH_MAX];
static long left = -1;
static int error, kind;

/* How `kind` fails: FAILS with `number` once; STAYS: from then on; SHORT: half a write; LOST: a rename or a flush that says
   it was done. `at` counts the calls; below 0 nothing fails. */
void fault_set(const char *where, long at, int number, int how) {
    snprintf(folder, sizeof folder, "%s", where);
    left = at, error = number, kind = how;
}
long fault_left(void) { return left; }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
static int under(const char *path) { return left >= 0 && *folder && !strncmp(path, folder, strlen(folder)); }
static int due(const char *path) {
    if (!under(path)) return 0;
    if (left > 0) return --left == 0;
    return kind == STAYS;
}
static int due_at(int fd) {
    char link[64], path[PATH_MAX];
    if (left < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return due(path);
}
static int fails(void) { return kind == FAILS || kind == STAYS ? (errno = error, 1) : 0; }

#define OPENS(name)                                                              \
    int name(const char *path, int flags, ...) {                                 \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT) && due(path) && fails()) return -1; \
        return REAL(name)(path, flags, mode);                                    \
    }
OPENS(open)
OPENS(open64)
#define OPENS_AT(name)                                                           \
    int name(int at, const char *path, int flags, ...) {                         \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT) && due(path) && fails()) return -1; \
        return REAL(name)(at, path, flags, mode);                                \
    }
OPENS_AT(openat)
OPENS_AT(openat64)
#define WRITES(name, rest, ...)                                                  \
    ssize_t name rest {                                                          \
        if (due_at(fd)) { if (fails()) return -1; if (kind == SHORT) size /= 2; } \
        return REAL(name)(__VA_ARGS__);                                          \
    }
WRITES(write, (int fd, const void *data, size_t size), fd, data, size)
WRITES(pwrite, (int fd, const void *data, size_t size, off_t at), fd, data, size, at)
WRITES(pwrite64, (int fd, const void *data, size_t size, off64_t at), fd, data, size, at)
WRITES(writev, (int fd, const struct iovec *data, int size), fd, data, size)
WRITES(pwritev, (int fd, const struct iovec *data, int size, off_t at), fd, data, size, at)
WRITES(pwritev64, (int fd, const struct iovec *data, int size, off64_t at), fd, data, size, at)
#define ENDS(name, test, lost, rest, ...)                                        \
    int name rest {                                                              \
        if (test) { if (fails()) return -1; if (lost && kind == LOST) return 0; } \
        return REAL(name)(__VA_ARGS__);                                          \
    }
ENDS(fsync, due_at(fd), 1, (int fd), fd)
ENDS(fdatasync, due_at(fd), 1, (int fd), fd)
ENDS(ftruncate, due_at(fd), 0, (int fd, off_t size), fd, size)
ENDS(ftruncate64, due_at(fd), 0, (int fd, off64_t size), fd, size)
ENDS(rename, due(to), 1, (const char *from, const char *to), from, to)
ENDS(unlink, error != ENOSPC && due(path), 0, (const char *path), path) /* a full disk can be cleared */
ENDS(mkdir, due(path), 0, (const char *path, mode_t mode), path, mode)
