/* Preloaded: the call that the file $HANG_FLAG names, or each one for "everything", hangs for paths
   that have $HANG_IN in them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void hang(const char *call, const char *path)
{
    const char *flag = getenv("HANG_FLAG"), *in = getenv("HANG_IN");
    char named[64];
    if (!flag || !in || !path || !strstr(path, in))
        return;
    int fd = syscall(SYS_openat, AT_FDCWD, flag, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    long got = syscall(SYS_read, fd, named, sizeof named - 1);
    syscall(SYS_close, fd);
    named[got > 0 ? got : 0] = 0;
    if (!strcmp(named, call) || !strcmp(named, "everything"))
        for (;;)
            pause();
}

static void hang_fd(const char *call, int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long got = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    path[got > 0 ? got : 0] = 0;
    hang(call, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define BY_PATH(type, name, call, types, values) \
    type name types { hang(call, path); return REAL(name) values; }
#define BY_FD(type, name, call, types, values) \
    type name types { hang_fd(call, fd); return REAL(name) values; }
#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        va_list more; \
        va_start(more, flags); \
        int mode = va_arg(more, int); \
        va_end(more); \
        hang("open", path); \
        return REAL(name)(path, flags, mode); \
    }

OPEN(open)
OPEN(open64)
BY_PATH(int, stat, "stat", (const char *path, struct stat *to), (path, to))
BY_PATH(int, stat64, "stat", (const char *path, struct stat64 *to), (path, to))
BY_PATH(int, lstat, "stat", (const char *path, struct stat *to), (path, to))
BY_PATH(int, lstat64, "stat", (const char *path, struct stat64 *to), (path, to))
BY_PATH(int, fstatat, "stat", (int at, const char *path, struct stat *to, int f), (at, path, to, f))
BY_PATH(int, fstatat64, "stat", (int at, const char *path, struct stat64 *to, int f),
        (at, path, to, f))
BY_FD(int, fstat, "fstat", (int fd, struct stat *to), (fd, to))
BY_FD(int, fstat64, "fstat", (int fd, struct stat64 *to), (fd, to))
BY_PATH(int, statvfs, "statvfs", (const char *path, struct statvfs *to), (path, to))
BY_PATH(int, statvfs64, "statvfs", (const char *path, struct statvfs64 *to), (path, to))
BY_PATH(int, access, "access", (const char *path, int mode), (path, mode))
BY_PATH(int, mkdir, "mkdir", (const char *path, mode_t mode), (path, mode))
BY_PATH(int, rename, "rename", (const char *path, const char *to), (path, to))
BY_PATH(int, unlink, "unlink", (const char *path), (path))
BY_PATH(int, rmdir, "rmdir", (const char *path), (path))
BY_PATH(DIR *, opendir, "opendir", (const char *path), (path))
BY_PATH(int, utimensat, "utimensat", (int at, const char *path, const struct timespec t[2], int f),
        (at, path, t, f))
BY_FD(ssize_t, read, "read", (int fd, void *to, size_t n), (fd, to, n))
BY_FD(ssize_t, pread, "pread", (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
BY_FD(ssize_t, pread64, "pread", (int fd, void *to, size_t n, off64_t at), (fd, to, n, at))
BY_FD(ssize_t, preadv, "preadv", (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
BY_FD(ssize_t, preadv64, "preadv", (int fd, const struct iovec *v, int n, off64_t at),
      (fd, v, n, at))
BY_FD(ssize_t, write, "write", (int fd, const void *from, size_t n), (fd, from, n))
BY_FD(ssize_t, pwrite, "pwrite", (int fd, const void *from, size_t n, off_t at), (fd, from, n, at))
BY_FD(ssize_t, pwrite64, "pwrite", (int fd, const void *from, size_t n, off64_t at),
      (fd, from, n, at))
BY_FD(int, ftruncate, "ftruncate", (int fd, off_t n), (fd, n))
BY_FD(int, ftruncate64, "ftruncate", (int fd, off64_t n), (fd, n))
BY_FD(int, fsync, "fsync", (int fd), (fd))
BY_FD(int, flock, "flock", (int fd, int how), (fd, how))
BY_FD(int, close, "close", (int fd), (fd))
