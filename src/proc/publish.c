/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing a perf map.
 *
 * The map's name is dictated by its readers, its directory belongs to the target or to
 * everyone. What keeps this safe:
 *
 *  - The directory is opened once (for a target without following any link) and held. From
 *    then on only names without slash are used below that fd, so the target can exchange
 *    or unmount what it likes.
 *  - It must be a directory that the target itself could write: a process can mount a
 *    directory of its choice over its /tmp, and must not have us plant files there.
 *  - The bytes go to a file without a name (O_TMPFILE; on file systems without it, one with
 *    a random name and O_EXCL). It gets its name when it is complete, so readers see the old map
 *    or the new one, a full disk spoils neither, and no existing file is ever opened:
 *    links, FIFOs and hard links lead nowhere, and fs.protected_regular has nothing to protect.
 *  - A name in use is taken over only from ourselves: the file that we published last, or,
 *    the first time, a regular file that our user owns and that has one link, which an earlier
 *    run left (or the runtime of an earlier process of that number). A name that is free is
 *    taken by an operation that fails if it is free no longer.
 *
 * Between the look at a file in use and the rename over it lies a moment. In a sticky
 * directory nobody but us can use it; in another, who can may replace our files anyway. A
 * rename never follows what it finds, so the worst is that a file is lost that was put
 * in the place of ours.
 *
 * root:root and 0644: perf (before 5.x) takes maps of root and of its caller only, and a
 * map that the target owned could be rewritten by it. On a file system that belongs to the
 * target's user namespace our root does not exist; there the files belong to that namespace's.
 *
 * Two targets can mean one file: two containers that share a /tmp both have a process 1. All
 * open maps stand in one list, so that a file has one writer. The list, like all of
 * struct proc_map, belongs to the one thread that owns the program's state.
 */
#include "proc/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>

#include "base/caps.h"
#include "base/clock.h"

/* linux/nsfs.h, since 6.11 */
#ifndef NS_GET_TGID_FROM_PIDNS
#define NS_GET_TGID_FROM_PIDNS _IOR(0xb7, 0x7, int)
#endif

struct proc_map {
	struct proc_map *next; /* in the list of open maps */
	pid_t pid;
	uint64_t start;
	int dir_fd;
	struct stat dir;
	bool own_dir; /* our own /tmp: a record is kept for the sweep */
	char name[32];
	char path[64]; /* for messages */

	/* who may own the file: we, or the target's root where we do not exist */
	bool as_inner_root;
	uid_t inner_root_uid;
	gid_t inner_root_gid;

	int fd;            /* in the making, or -1 */
	int error;         /* what ended the making */
	char temp[64];     /* its name, empty while it has none */
	bool published;    /* the rest is about the file in place: */
	struct stat known; /* as it was right after we published it */
};

static struct proc_map *open_maps;

/* -- Opening --------------------------------------------------------------------------- */

/* An errno of the target's file system, when something is written there. */
static int publish_error(int err)
{
	switch (err) {
	case ENOSPC:
	case EDQUOT:
	case EFBIG: return PROC_E_NO_SPACE;
	case EROFS:
	case ENOENT: /* no /tmp at all, or the directory was removed */
	case ESTALE: return PROC_E_READ_ONLY;
	case EACCES:
	case EPERM: return PROC_E_DENIED;
	default: return proc_error_below(err, PROC_E_FOREIGN_FILE);
	}
}

/* Could the process itself make a file there? The kernel says, with the process's rights. */
static int check_writable(const struct proc *p, int dir_fd)
{
	_cleanup_rights_ struct rights rights = RIGHTS_OWN;
	int r;

	r = rights_borrow(&rights, p);
	if (r)
		return r;
	if (faccessat(dir_fd, ".", W_OK | X_OK, AT_EACCESS) < 0)
		return errno == EACCES ? PROC_E_FOREIGN_FILE : publish_error(errno);
	return 0;
}

static int open_target_dir(const struct proc *p, int *fdp)
{
	_cleanup_close_ int root_fd = -1, fd = -1;
	int r;

	r = proc_open_root(p, &root_fd);
	if (r)
		return r;
	fd = proc_openat2(root_fd, "tmp", O_PATH | O_DIRECTORY,
			  RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS);
	if (fd < 0)
		return publish_error(errno);
	r = check_writable(p, fd);
	if (r)
		return r;
	*fdp = TAKE_FD(fd);
	return 0;
}

static int open_own_dir(int *fdp)
{
	/* the administrator's choice: may be a link */
	int fd = open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return publish_error(errno);
	*fdp = fd;
	return 0;
}

struct number_walk {
	const struct proc *p;
	dev_t dev;
	ino_t ino;
	bool found;
};

static int number_walk_one(void *data, pid_t pid)
{
	struct number_walk *walk = data;
	_cleanup_(proc_closep) struct proc *other = NULL;
	dev_t dev;
	ino_t ino;
	int r;

	r = proc_open(pid, &other);
	if (r)
		return MIN(r, 0);
	if (other->inner_pid == walk->p->pid && proc_ns_id(other->dir_fd, "ns/pid", &dev, &ino) &&
	    dev == walk->dev && ino == walk->ino)
		walk->found = true;
	return walk->found;
}

/* Has some process inside the target's pid namespace the number that we know the target by? */
static int number_is_taken(const struct proc *p, bool *yesp)
{
	struct number_walk walk = { .p = p };
	_cleanup_close_ int ns_fd = -1;
	int r;

	ns_fd = openat(p->dir_fd, "ns/pid", O_RDONLY | O_CLOEXEC);
	if (ns_fd < 0)
		return proc_error_of(errno);
	r = ioctl(ns_fd, NS_GET_TGID_FROM_PIDNS, p->pid);
	*yesp = r >= 0;
	if (r >= 0 || errno == ESRCH)
		return 0;
	/* an older kernel: all processes are looked at, once for a target */
	if (!proc_ns_id(p->dir_fd, "ns/pid", &walk.dev, &walk.ino))
		return PROC_E_DENIED;
	r = proc_for_each(number_walk_one, &walk);
	if (r < 0)
		return r;
	*yesp = walk.found;
	return 0;
}

/* Is another open map the same file? */
static int check_unique(const struct proc_map *m)
{
	const struct proc_map *other;

	for (other = open_maps; other; other = other->next) {
		if (other->dir.st_dev != m->dir.st_dev || other->dir.st_ino != m->dir.st_ino ||
		    strcmp(other->name, m->name) != 0)
			continue;
		return other->pid == m->pid && other->start == m->start ? PROC_E_SAME_PLACE
									: PROC_E_FOREIGN_FILE;
	}
	return 0;
}

int proc_map_open(const struct proc *p, enum proc_map_place place, struct proc_map **outp)
{
	_cleanup_(proc_map_closep) struct proc_map *m = NULL;
	pid_t number = place == PROC_MAP_TARGET ? p->inner_pid : p->pid;
	struct stat own;
	bool taken = false;
	int r;

	if (place == PROC_MAP_TARGET_OUTER) {
		if (p->same_pid_ns || p->inner_pid == p->pid)
			return PROC_E_SAME_PLACE;
		r = number_is_taken(p, &taken);
		if (r)
			return r;
		if (taken)
			return PROC_E_FOREIGN_FILE;
	}
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->pid = p->pid;
	m->start = p->start;
	m->dir_fd = m->fd = -1;
	snprintf(m->name, sizeof(m->name), "perf-%d.map", number);
	r = place == PROC_MAP_HOST ? open_own_dir(&m->dir_fd) : open_target_dir(p, &m->dir_fd);
	if (r)
		return r;
	if (fstat(m->dir_fd, &m->dir) < 0)
		return publish_error(errno);
	m->own_dir = stat("/tmp", &own) == 0 && own.st_dev == m->dir.st_dev &&
		     own.st_ino == m->dir.st_ino;
	if (m->own_dir)
		snprintf(m->path, sizeof(m->path), "/tmp/%s", m->name);
	else
		snprintf(m->path, sizeof(m->path), "/proc/%d/root/tmp/%s", p->pid, m->name);
	r = check_unique(m);
	if (r)
		return r;
	if (place == PROC_MAP_HOST ||
	    proc_root_ids(p, &m->inner_root_uid, &m->inner_root_gid) != 0) {
		m->inner_root_uid = geteuid();
		m->inner_root_gid = getegid();
	}
	m->next = open_maps;
	open_maps = m;
	*outp = TAKE_PTR(m);
	return 0;
}

/* -- Making ---------------------------------------------------------------------------- */

/* Unlikely to be in use; O_EXCL sees to the rest, so it need not be a secret. */
static void temp_name(struct proc_map *m)
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != (ssize_t)sizeof(random))
		random = clock_now_ns();
	snprintf(m->temp, sizeof(m->temp), ".%s.%016llx", m->name, (unsigned long long)random);
}

/* An fd of a new empty file, m->temp its name if it has one. -1 with errno. */
static int create_file(struct proc_map *m)
{
	int fd;

	m->temp[0] = '\0';
	fd = openat(m->dir_fd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT &&
			errno != EINVAL && errno != ENOSYS))
		return fd;
	/* NFS, overlayfs before 6.1: a crash from here to the rename leaves the file behind */
	temp_name(m);
	fd = openat(m->dir_fd, m->temp, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		m->temp[0] = '\0';
	return fd;
}

static int create_file_as(struct proc_map *m, uid_t uid, gid_t gid)
{
	_cleanup_rights_ struct rights rights = RIGHTS_OWN;
	struct stat st;
	int r;

	if (m->as_inner_root) {
		r = rights_borrow_ids(&rights, uid, gid);
		if (r)
			return r;
	}
	m->fd = create_file(m);
	if (m->fd < 0)
		return errno == EOVERFLOW ? PROC_E_DENIED : publish_error(errno);
	if (fstat(m->fd, &st) < 0)
		return publish_error(errno);
	/* a file system where we have no id, or NFS that makes root a nobody */
	if (st.st_uid != uid)
		return PROC_E_DENIED;
	/* neither the umask nor a directory's group or default ACL has a say */
	if (fchmod(m->fd, 0644) < 0)
		return publish_error(errno);
	if (st.st_gid != gid && fchown(m->fd, (uid_t)-1, gid) < 0 && errno != EPERM)
		return publish_error(errno);
	return 0;
}

int proc_map_begin(struct proc_map *m)
{
	int r;

	proc_map_abort(m);
	m->error = 0;
	r = create_file_as(m, m->as_inner_root ? m->inner_root_uid : geteuid(),
			   m->as_inner_root ? m->inner_root_gid : getegid());
	if (r == PROC_E_DENIED && !m->as_inner_root && m->inner_root_uid != geteuid()) {
		proc_map_abort(m);
		m->as_inner_root = true;
		r = create_file_as(m, m->inner_root_uid, m->inner_root_gid);
		if (r)
			m->as_inner_root = false;
	}
	if (r)
		proc_map_abort(m);
	return r;
}

int proc_map_append(struct proc_map *m, const void *data, size_t n)
{
	const char *p = data;

	if (m->fd < 0)
		return m->error ? m->error : -EBADF;
	while (n > 0) {
		ssize_t done = write(m->fd, p, n);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0) {
			int error = publish_error(errno);

			/* gives the space back at once */
			proc_map_abort(m);
			m->error = error;
			return error;
		}
		p += done;
		n -= (size_t)done;
	}
	return 0;
}

void proc_map_abort(struct proc_map *m)
{
	if (m->temp[0])
		unlinkat(m->dir_fd, m->temp, 0);
	m->temp[0] = '\0';
	m->fd = fd_close(m->fd);
}

/* -- Putting in place ------------------------------------------------------------------ */

/*
 * Is it the file, as it was? The inode alone does not tell: a runtime that may write our file opens
 * and empties it, and ext4 gives the number of a removed file to the next one.
 */
bool proc_same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* What stands under our name: 0 nothing, 1 a file of ours, or FOREIGN_FILE, or -errno. */
static int look(const struct proc_map *m)
{
	struct stat st;

	if (fstatat(m->dir_fd, m->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : publish_error(errno);
	if (!S_ISREG(st.st_mode))
		return PROC_E_FOREIGN_FILE;
	if (m->published)
		return proc_same_file(&st, &m->known) ? 1 : PROC_E_FOREIGN_FILE;
	if (st.st_nlink != 1 ||
	    (st.st_uid != geteuid() && !(m->as_inner_root && st.st_uid == m->inner_root_uid)))
		return PROC_E_FOREIGN_FILE;
	return 1;
}

/* Gives the nameless file a name that must be free. 0 or -1 with errno. */
static int link_file(const struct proc_map *m, const char *name)
{
	char link[32];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", m->fd);
	return linkat(AT_FDCWD, link, m->dir_fd, name, AT_SYMLINK_FOLLOW);
}

static int take_free_name(struct proc_map *m)
{
	if (!m->temp[0])
		return link_file(m, m->name);
	if (renameat2(m->dir_fd, m->temp, m->dir_fd, m->name, RENAME_NOREPLACE) == 0)
		return 0;
	/* NFS and some FUSE do not know the flag; it was free a moment ago */
	if (errno == EINVAL || errno == ENOSYS)
		return renameat(m->dir_fd, m->temp, m->dir_fd, m->name);
	return -1;
}

static int replace_own_name(struct proc_map *m)
{
	if (!m->temp[0]) {
		temp_name(m);
		if (link_file(m, m->temp) < 0) {
			int err = errno;

			m->temp[0] = '\0';
			errno = err;
			return -1;
		}
	}
	return renameat(m->dir_fd, m->temp, m->dir_fd, m->name);
}

/* With which rights names are made: the same that made the file. */
static int put_in_place(struct proc_map *m)
{
	_cleanup_rights_ struct rights rights = RIGHTS_OWN;
	int r;

	r = look(m);
	if (r != 0 && r != 1)
		return r;
	if (m->as_inner_root) {
		int e = rights_borrow_ids(&rights, m->inner_root_uid, m->inner_root_gid);

		if (e)
			return e;
	}
	if ((r ? replace_own_name(m) : take_free_name(m)) < 0)
		return errno == EEXIST ? PROC_E_FOREIGN_FILE : publish_error(errno);
	return 0;
}

int proc_map_publish(struct proc_map *m)
{
	int r;

	if (m->fd < 0)
		return m->error ? m->error : -EBADF;
	r = put_in_place(m);
	if (r) {
		proc_map_abort(m);
		return r;
	}
	m->temp[0] = '\0';
	m->published = fstat(m->fd, &m->known) == 0;
	m->fd = fd_close(m->fd);
	/* the map is in place; without a record only the next start's sweep misses it */
	if (m->own_dir && m->published)
		proc_record_write(m->pid, m->start, m->name, &m->known);
	return 0;
}

int proc_map_check(struct proc_map *m)
{
	struct stat st;

	if (!m->published)
		return PROC_E_GONE;
	if (fstatat(m->dir_fd, m->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? PROC_E_GONE : publish_error(errno);
	if (!proc_same_file(&st, &m->known))
		return PROC_E_FOREIGN_FILE;
	return 0;
}

void proc_map_remove(struct proc_map *m)
{
	if (proc_map_check(m) == 0)
		unlinkat(m->dir_fd, m->name, 0);
	if (m->own_dir && m->published)
		proc_record_remove(m->pid, m->start, m->name);
	m->published = false;
}

void proc_map_close(struct proc_map *m)
{
	struct proc_map **pp;

	if (!m)
		return;
	proc_map_abort(m);
	for (pp = &open_maps; *pp; pp = &(*pp)->next) {
		if (*pp == m) {
			*pp = m->next;
			break;
		}
	}
	fd_close(m->dir_fd);
	free(m);
}

const char *proc_map_path(const struct proc_map *m)
{
	return m->path;
}
