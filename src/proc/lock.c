/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we keep on disk: one lock a target, and a record of each map in our own /tmp.
 *
 * Both lie in a directory that only our user can write: /run/clrsym for root, else
 * $XDG_RUNTIME_DIR/clrsym, else /tmp/clrsym-UID, which anyone could have made first and is
 * therefore checked. Root and a user do not see each other's locks; for that there is the
 * daemon, which every command asks first.
 *
 * A lock is an flock() on PID-START.lock, so it ends with its holder. The file is removed by
 * who unlocks it; one that locked a file which has lost its name meanwhile starts again.
 *
 * A record, PID-START-perf-N.map, holds device, inode, size and time of the map as published
 * (inode numbers are used again). Maps outlive `clrsym map` and a stopping daemon on purpose; the
 * next start removes those whose process is gone, and by the record touches no other file of that
 * name.
 */
#include "proc/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

#include "base/caps.h"

int proc_state_open(int *fdp)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	uid_t uid = geteuid();
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	struct stat st;
	int n;

	if (uid == 0)
		n = asprintf(&path, "/run/clrsym");
	else if (runtime && runtime[0] == '/')
		n = asprintf(&path, "%s/clrsym", runtime);
	else
		n = asprintf(&path, "/tmp/clrsym-%u", uid);
	if (n < 0) {
		path = NULL;
		return -ENOMEM;
	}
	if (mkdir(path, uid == 0 ? 0755 : 0700) < 0 && errno != EEXIST)
		return proc_error_below(errno, PROC_E_NO_STATE);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return proc_error_below(errno, PROC_E_NO_STATE);
	if (st.st_uid != uid || (st.st_mode & (uid == 0 ? 022 : 077)))
		return PROC_E_NO_STATE;
	*fdp = TAKE_FD(fd);
	return 0;
}

/* -- The lock -------------------------------------------------------------------------- */

static void lock_name(char *name, size_t size, pid_t pid, uint64_t start)
{
	snprintf(name, size, "%d-%llu.lock", pid, (unsigned long long)start);
}

static pid_t read_holder(int fd)
{
	char text[16];
	struct text t, line;
	uint64_t pid;
	ssize_t n = pread(fd, text, sizeof(text), 0);

	t = text_of(text, n > 0 ? (size_t)n : 0);
	/* empty for a moment, between locking and writing */
	if (!text_line(&t, &line) || !text_u64(line, 10, &pid) || pid > INT32_MAX)
		return 0;
	return (pid_t)pid;
}

/* 0 with *fdp locked, PROC_E_LOCKED with *fdp open, PROC_E_GONE: the name went, try again. */
static int lock_once(int dir_fd, const char *name, int flags, int *fdp)
{
	struct stat by_fd, by_name;
	int fd;

	fd = openat(dir_fd, name, O_RDWR | flags | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return errno == ENOENT ? PROC_E_GONE : proc_error_below(errno, PROC_E_DENIED);
	*fdp = fd;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? PROC_E_LOCKED : -errno;
	if (fstat(fd, &by_fd) < 0 || fstatat(dir_fd, name, &by_name, AT_SYMLINK_NOFOLLOW) < 0 ||
	    by_fd.st_dev != by_name.st_dev || by_fd.st_ino != by_name.st_ino)
		return PROC_E_GONE;
	return 0;
}

int proc_lock(const struct proc *p, int *fdp, pid_t *holderp)
{
	_cleanup_close_ int dir_fd = -1;
	char name[48], text[16];
	int tries, n, r;

	if (holderp)
		*holderp = 0;
	r = proc_state_open(&dir_fd);
	if (r)
		return r;
	lock_name(name, sizeof(name), p->pid, p->start);
	for (tries = 0; tries < 16; tries++) {
		_cleanup_close_ int fd = -1;

		r = lock_once(dir_fd, name, O_CREAT, &fd);
		if (r == PROC_E_GONE)
			continue;
		if (r == PROC_E_LOCKED && holderp)
			*holderp = read_holder(fd);
		if (r)
			return r;
		n = snprintf(text, sizeof(text), "%d\n", getpid());
		/* for the loser's message: the lock is the flock() */
		if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) != n)
			return PROC_E_DENIED;
		*fdp = TAKE_FD(fd);
		return 0;
	}
	return PROC_E_LOCKED;
}

void proc_unlock(const struct proc *p, int fd)
{
	_cleanup_close_ int dir_fd = -1;
	char name[48];

	if (fd < 0)
		return;
	lock_name(name, sizeof(name), p->pid, p->start);
	/* removed while still locked: who opened it before finds that the name is gone */
	if (proc_state_open(&dir_fd) == 0)
		unlinkat(dir_fd, name, 0);
	fd_close(fd);
}

/* -- Records --------------------------------------------------------------------------- */

/* Five numbers of up to 20 digits. */
#define RECORD_MAX 128

static void record_name(char *name, size_t size, pid_t pid, uint64_t start, const char *map)
{
	snprintf(name, size, "%d-%llu-%s", pid, (unsigned long long)start, map);
}

void proc_record_write(pid_t pid, uint64_t start, const char *map, const struct stat *st)
{
	_cleanup_close_ int dir_fd = -1, fd = -1;
	char name[96], text[RECORD_MAX];
	int n;

	if (proc_state_open(&dir_fd))
		return;
	record_name(name, sizeof(name), pid, start, map);
	fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return;
	n = snprintf(text, sizeof(text), "%llu %llu %llu %llu %llu\n",
		     (unsigned long long)st->st_dev, (unsigned long long)st->st_ino,
		     (unsigned long long)st->st_size, (unsigned long long)st->st_mtim.tv_sec,
		     (unsigned long long)st->st_mtim.tv_nsec);
	/* cut off first: a torn record must match no file */
	if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) != n)
		unlinkat(dir_fd, name, 0);
}

void proc_record_remove(pid_t pid, uint64_t start, const char *map)
{
	_cleanup_close_ int dir_fd = -1;
	char name[96];

	if (proc_state_open(&dir_fd))
		return;
	record_name(name, sizeof(name), pid, start, map);
	unlinkat(dir_fd, name, 0);
}

static bool record_read(int dir_fd, const char *name, struct stat *st)
{
	_cleanup_close_ int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	struct text t, line, word;
	char text[RECORD_MAX];
	uint64_t v[5];
	ssize_t n;
	size_t i;

	n = fd < 0 ? -1 : pread(fd, text, sizeof(text), 0);
	if (n <= 0 || text[n - 1] != '\n')
		return false;
	t = text_of(text, (size_t)n);
	if (!text_line(&t, &line))
		return false;
	for (i = 0; i < ARRAY_SIZE(v); i++) {
		if (!text_word(&line, &word) || !text_u64(word, 10, &v[i]))
			return false;
	}
	*st = (struct stat){ .st_dev = v[0],
			     .st_ino = v[1],
			     .st_size = (off_t)v[2],
			     .st_mtim = { (time_t)v[3], (long)v[4] } };
	return true;
}

/* -- The sweep ------------------------------------------------------------------------- */

static bool cut_number(struct text *t, char end, uint64_t *valuep)
{
	const char *at = t->p < t->end ? memchr(t->p, end, text_len(*t)) : NULL;

	if (!at || !text_u64((struct text){ t->p, at }, 10, valuep))
		return false;
	t->p = at + 1;
	return true;
}

static bool process_gone(uint64_t pid, uint64_t start)
{
	_cleanup_(proc_closep) struct proc *p = NULL;
	int r;

	r = pid <= INT32_MAX ? proc_open((pid_t)pid, &p) : PROC_E_GONE;
	return r == PROC_E_GONE || (r == 0 && p->start != start);
}

static bool remove_map(int tmp_fd, const char *map, const struct stat *known)
{
	struct stat st;

	return fstatat(tmp_fd, map, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
	       st.st_uid == geteuid() && proc_same_file(&st, known) &&
	       unlinkat(tmp_fd, map, 0) == 0;
}

/* A target that has exited may still be somebody's: its map is kept for a while. */
static bool lock_is_held(int dir_fd, uint64_t pid, uint64_t start)
{
	_cleanup_close_ int fd = -1;
	char name[48];

	lock_name(name, sizeof(name), (pid_t)pid, start);
	return lock_once(dir_fd, name, 0, &fd) == PROC_E_LOCKED;
}

/* One file of ours: true if a map went with it. */
static bool sweep_one(int dir_fd, int tmp_fd, const char *name)
{
	struct text t = text_of(name, strlen(name));
	bool is_lock = text_ends(t, ".lock");
	_cleanup_close_ int fd = -1;
	uint64_t pid, start;
	struct stat known;
	bool removed;

	if (!cut_number(&t, '-', &pid) || !cut_number(&t, is_lock ? '.' : '-', &start) ||
	    !process_gone(pid, start))
		return false;
	if (is_lock) {
		/* another instance may still be busy with the end of its target */
		if (lock_once(dir_fd, name, 0, &fd) == 0)
			unlinkat(dir_fd, name, 0);
		return false;
	}
	if (!text_begins(t, "perf-") || !text_ends(t, ".map") || lock_is_held(dir_fd, pid, start))
		return false;
	removed = record_read(dir_fd, name, &known) && remove_map(tmp_fd, t.p, &known);
	unlinkat(dir_fd, name, 0);
	return removed;
}

int proc_maps_sweep(void)
{
	_cleanup_(dir_closep) DIR *dir = NULL;
	_cleanup_close_ int dir_fd = -1, tmp_fd = -1;
	struct dirent *entry;
	int n_removed = 0, r;

	r = proc_state_open(&dir_fd);
	if (r < 0)
		return r;
	if (r > 0)
		return 0;
	tmp_fd = open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (tmp_fd < 0)
		return -errno;
	dir = fdopendir(dir_fd);
	if (!dir)
		return -ENOMEM;
	dir_fd = -1; /* the stream's now */
	while ((entry = readdir(dir)))
		n_removed += sweep_one(dirfd(dir), tmp_fd, entry->d_name);
	return n_removed;
}
