/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening what belongs to a target.
 *
 * There are two kinds of such files, and both are safe for a reason of their own:
 *
 *  - Entries of /proc/PID, opened relative to the directory fd in struct proc. That fd names
 *    the kernel's struct pid, not a number: once the process is gone every open and every read
 *    through it fails with ESRCH or ENOENT, whoever has the number then. So nothing needs to
 *    be checked again afterwards.
 *
 *  - Files below the target's root. The process owns names and contents of these, may
 *    exchange them at any time, and may have mounted into its root any directory that it can reach.
 *    They are therefore walked by openat2 with RESOLVE_IN_ROOT (links, "..", and absolute paths
 *    stay inside) and RESOLVE_NO_MAGICLINKS, opened O_PATH first (which has no effect on a FIFO or
 *    a device), looked at, and only then opened through /proc/self/fd, which cannot lead to
 *    another file. And they are opened with the target's own rights (rights.c), so that a path
 *    that it sends us never opens what it could not have read itself.
 *
 * Not solved here: a file system that does not answer (a dead NFS server; FUSE is closed to
 * root by the kernel unless mounted allow_other) holds up the caller. That takes a process of
 * its own, which can be killed.
 */
#include "proc/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "base/caps.h"

int proc_error_of(int err)
{
	switch (err) {
	case ENOENT: /* the directory of a process that is gone */
	case ESRCH: return PROC_E_GONE;
	case EACCES:
	case EPERM: return PROC_E_DENIED;
	default: return -err;
	}
}

int proc_error_below(int err, int code)
{
	switch (err) {
	case ENOMEM:
	case EMFILE:
	case ENFILE: return -err;
	default: return code;
	}
}

int proc_openat2(int dir_fd, const char *path, uint64_t flags, uint64_t resolve)
{
	struct open_how how = { .flags = flags | O_CLOEXEC, .resolve = resolve };
	unsigned int i;
	int fd = -1;

	for (i = 0; i < CAP_OPENAT2_TRIES; i++) {
		fd = (int)syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));
		if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
			break;
	}
	return fd;
}

int proc_read_at(int dir_fd, const char *name, size_t cap, struct buf *out)
{
	_cleanup_close_ int fd = -1;
	int r;

	buf_clear(out);
	out->cap = cap;
	fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return proc_error_of(errno);
	for (;;) {
		ssize_t n;

		r = buf_reserve(out, 4096);
		if (r == -ENOSPC)
			return PROC_E_TOO_BIG;
		if (r < 0)
			return r;
		n = read(fd, out->data + out->len, out->size - out->len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return proc_error_of(errno);
		if (n == 0)
			return 0;
		out->len += (size_t)n;
	}
}

struct text proc_text(const struct buf *b)
{
	return text_of(b->data, b->len);
}

int proc_open_root(const struct proc *p, int *fdp)
{
	/* a magic link, and the one that we mean to follow; needs the rights of ptrace */
	int fd = openat(p->dir_fd, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return proc_error_of(errno);
	*fdp = fd;
	return 0;
}

static int open_entry(const struct proc *p, const char *name, int *fdp)
{
	int fd = openat(p->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return proc_error_of(errno);
	*fdp = fd;
	return 0;
}

int proc_open_maps(const struct proc *p, int *fdp)
{
	return open_entry(p, "maps", fdp);
}

int proc_open_mem(const struct proc *p, int *fdp)
{
	return open_entry(p, "mem", fdp);
}

/*
 * Files that are regular by mode only: reading them may block (kmsg), consume (trace_pipe) or
 * speak about us and not the target (/proc/self).
 */
static bool pseudo_file(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) < 0)
		return true;
	switch ((unsigned long)fs.f_type) {
	case PROC_SUPER_MAGIC:
	case SYSFS_MAGIC:
	case DEBUGFS_MAGIC:
	case TRACEFS_MAGIC:
	case SECURITYFS_MAGIC:
	case CGROUP_SUPER_MAGIC:
	case CGROUP2_SUPER_MAGIC:
	case BPF_FS_MAGIC: return true;
	default: return false;
	}
}

int proc_open_file_below_root(const struct proc *p, const char *path, int *fdp)
{
	_cleanup_rights_ struct rights rights = RIGHTS_OWN;
	_cleanup_close_ int root_fd = -1, path_fd = -1, fd = -1;
	char link[32];
	struct stat st;
	int r;

	r = proc_open_root(p, &root_fd);
	if (r)
		return r;
	r = rights_borrow(&rights, p);
	if (r)
		return r;
	path_fd = proc_openat2(root_fd, path, O_PATH, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
	if (path_fd < 0)
		return proc_error_below(errno, errno == ENOENT || errno == ENOTDIR ? PROC_E_NO_FILE
										   : PROC_E_DENIED);
	if (fstat(path_fd, &st) < 0 || !S_ISREG(st.st_mode) || pseudo_file(path_fd))
		return PROC_E_DENIED;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", path_fd);
	fd = open(link, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return proc_error_below(errno, PROC_E_DENIED);
	*fdp = TAKE_FD(fd);
	return 0;
}
