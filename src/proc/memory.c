/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory a process may still take.
 *
 * What we ask of a runtime (the buffer of a rundown) is its memory, charged to its cgroup,
 * and must not be what pushes it over a limit. The room is the smallest of: for each
 * cgroup from its own up to the top, limit minus use; and the memory the machine has
 * available. Use does not count inactive file pages: the kernel drops them before it
 * refuses anything, and a container that has run for a while is always full of them.
 *
 * The path in /proc/PID/cgroup is relative to our cgroup namespace, and the mounts that we see
 * may show only a part of the tree (a container's): what we cannot see has no say.
 */
#include "proc/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "base/caps.h"

/* v1 says "none" by the largest multiple of a page. */
#define V1_UNLIMITED (UINT64_MAX >> 2)

static bool read_text(int dir_fd, const char *name, char *text, size_t size, struct text *tp)
{
	_cleanup_close_ int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	size_t len = 0;

	if (fd < 0)
		return false;
	while (len < size) {
		ssize_t n = read(fd, text + len, size - len);

		if (n < 0)
			return false;
		if (n == 0)
			break;
		len += (size_t)n;
	}
	*tp = text_of(text, len);
	return true;
}

/* A file with one number; false if it is missing, or says "max". */
static bool read_number(int dir_fd, const char *name, uint64_t *valuep)
{
	struct text t, line;
	char text[32];

	return read_text(dir_fd, name, text, sizeof(text), &t) && text_line(&t, &line) &&
	       text_u64(line, 10, valuep);
}

static uint64_t read_reclaimable(int dir_fd, const char *key)
{
	char text[8192];
	uint64_t value;
	struct text t;

	if (!read_text(dir_fd, "memory.stat", text, sizeof(text), &t) || !parse_key(t, key, &value))
		return 0;
	return value;
}

static uint64_t room_of(uint64_t limit, uint64_t used, uint64_t reclaimable)
{
	used -= MIN(used, reclaimable);
	return limit - MIN(limit, used);
}

static uint64_t room_v2(int dir_fd)
{
	uint64_t limit = UINT64_MAX, value, used;

	if (read_number(dir_fd, "memory.max", &value))
		limit = MIN(limit, value);
	/* above this the kernel makes the process wait */
	if (read_number(dir_fd, "memory.high", &value))
		limit = MIN(limit, value);
	if (limit == UINT64_MAX || !read_number(dir_fd, "memory.current", &used))
		return UINT64_MAX;
	return room_of(limit, used, read_reclaimable(dir_fd, "inactive_file"));
}

static uint64_t room_v1(int dir_fd)
{
	uint64_t limit, used;

	if (!read_number(dir_fd, "memory.limit_in_bytes", &limit) || limit >= V1_UNLIMITED ||
	    !read_number(dir_fd, "memory.usage_in_bytes", &used))
		return UINT64_MAX;
	return room_of(limit, used, read_reclaimable(dir_fd, "total_inactive_file"));
}

/* Walks from the cgroup up to the mount point. */
static uint64_t room_tree(int mount_fd, const char *path, uint64_t (*room)(int dir_fd))
{
	uint64_t least = UINT64_MAX;
	char name[PATH_MAX];
	unsigned int depth;

	if (snprintf(name, sizeof(name), "./%s", path) >= (int)sizeof(name))
		return least;
	for (depth = 0; depth < CAP_CGROUP_DEPTH; depth++) {
		_cleanup_close_ int fd = -1;
		char *slash;

		fd = proc_openat2(mount_fd, name, O_PATH | O_DIRECTORY,
				  RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
		/* removed meanwhile: the levels above still count */
		if (fd >= 0)
			least = MIN(least, room(fd));
		slash = strrchr(name, '/');
		if (!slash)
			break;
		*slash = '\0';
	}
	return least;
}

uint64_t proc_memory_room_at(int v2_fd, const char *v2_path, int v1_fd, const char *v1_path,
			     struct text meminfo)
{
	uint64_t least = UINT64_MAX, value;

	if (parse_key(meminfo, "MemAvailable", &value))
		least = value;
	if (v2_fd >= 0)
		least = MIN(least, room_tree(v2_fd, v2_path, room_v2));
	if (v1_fd >= 0)
		least = MIN(least, room_tree(v1_fd, v1_path, room_v1));
	return least;
}

bool proc_cgroup_place(struct text mountinfo, bool v1, struct text path, char *mount,
		       size_t mount_size, char *rest, size_t rest_size)
{
	struct text line;

	/* "/../x": outside of our cgroup namespace */
	if (text_len(path) == 0 || *path.p != '/' || text_begins(path, "/.."))
		return false;
	while (text_line(&mountinfo, &line)) {
		struct parse_mount m;
		char root[PATH_MAX];
		struct text below = path;
		ssize_t n;

		if (!parse_mount(line, &m))
			continue;
		if (v1 ? !text_equal(m.type, "cgroup") ||
				    !parse_has_option(m.super_options, "memory")
		       : !text_equal(m.type, "cgroup2"))
			continue;
		n = parse_unescape(m.root, root, sizeof(root));
		if (n < 0 || parse_unescape(m.mount_point, mount, mount_size) < 0)
			continue;
		/* a mount may show a subtree only: its root leads the path, or it is elsewhere */
		if (strcmp(root, "/") != 0) {
			if (!text_begins(below, root))
				continue;
			below.p += n;
			if (below.p < below.end && *below.p != '/')
				continue;
		}
		while (below.p < below.end && *below.p == '/')
			below.p++;
		if (text_len(below) >= rest_size)
			continue;
		*stpncpy(rest, below.p ? below.p : "", text_len(below)) = '\0';
		return true;
	}
	return false;
}

/* An fd of the tree's mount and the path below it. -1 if there is none to be seen. */
static int open_tree(struct text mountinfo, bool v1, struct text path, char *rest, size_t size)
{
	char mount[PATH_MAX];

	rest[0] = '\0';
	if (!proc_cgroup_place(mountinfo, v1, path, mount, sizeof(mount), rest, size))
		return -1;
	return open(mount, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

uint64_t proc_memory_room(const struct proc *p)
{
	_cleanup_buf_ struct buf cgroup = { 0 }, mounts = { 0 }, meminfo = { 0 };
	_cleanup_close_ int v2_fd = -1, v1_fd = -1, proc_fd = -1;
	char v2_path[PATH_MAX], v1_path[PATH_MAX];
	struct text v2 = { 0 }, v1 = { 0 };

	proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (proc_fd < 0)
		return UINT64_MAX;
	if (proc_read_at(p->dir_fd, "cgroup", CAP_PROC_FILE, &cgroup) == 0)
		parse_cgroup(proc_text(&cgroup), &v2, &v1);
	if (proc_read_at(proc_fd, "meminfo", CAP_PROC_FILE, &meminfo))
		buf_clear(&meminfo);
	if (proc_read_at(proc_fd, "thread-self/mountinfo", CAP_PROC_FILE, &mounts))
		buf_clear(&mounts);
	v2_fd = open_tree(proc_text(&mounts), false, v2, v2_path, sizeof(v2_path));
	v1_fd = open_tree(proc_text(&mounts), true, v1, v1_path, sizeof(v1_path));
	return proc_memory_room_at(v2_fd, v2_path, v1_fd, v1_path, proc_text(&meminfo));
}
