/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who a process is.
 *
 * A pid is only a number, and numbers are used again. A process is held by two fds that
 * both name the kernel's own object: a pidfd (signals its exit) and a directory fd of
 * /proc/PID. They are opened by number one after the other, so the number could change hands in
 * between; but if the pidfd's process still lives after the directory was opened, it had the
 * number all the time, and the directory is its own. Whoever asks later asks these fds.
 *
 * The start time (field 22 of stat) together with the pid names the process to others: to
 * the user, in file names, in the socket's name. The kernel shows it in the reader's time
 * namespace; a target in another one sees it shifted by the difference of the boot-time offsets.
 *
 * None of this changes at exec: pid, fds and start time stay. proc_exec_id() tells one
 * program image from the next.
 */
#include "proc/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/hash.h"

bool proc_ns_id(int dir_fd, const char *name, dev_t *devp, ino_t *inop)
{
	struct stat st;

	if (fstatat(dir_fd, name, &st, 0) < 0)
		return false;
	*devp = st.st_dev;
	*inop = st.st_ino;
	return true;
}

/* True only when both may be seen and are one. Numbers are never compared: an inner pid may
 * equal the outer one by chance. */
static bool same_ns(int dir_fd, const char *name, int other_fd, const char *other_name)
{
	dev_t dev, other_dev;
	ino_t ino, other_ino;

	return proc_ns_id(dir_fd, name, &dev, &ino) &&
	       proc_ns_id(other_fd, other_name, &other_dev, &other_ino) && dev == other_dev &&
	       ino == other_ino;
}

int proc_status(const struct proc *p, struct parse_status *out)
{
	_cleanup_buf_ struct buf text = { 0 };
	int r;

	r = proc_read_at(p->dir_fd, "status", CAP_PROC_FILE, &text);
	if (r)
		return r;
	return parse_status(proc_text(&text), out) ? 0 : PROC_E_GONE;
}

static int read_stat(const struct proc *p, struct buf *text, struct parse_stat *out)
{
	int r;

	r = proc_read_at(p->dir_fd, "stat", CAP_PROC_FILE, text);
	if (r)
		return r;
	return parse_stat(proc_text(text), out) ? 0 : PROC_E_GONE;
}

static int root_id(const struct proc *p, const char *name, uint32_t *idp)
{
	_cleanup_buf_ struct buf text = { 0 };
	int r;

	r = proc_read_at(p->dir_fd, name, CAP_PROC_FILE, &text);
	if (r)
		return r;
	return parse_id_map_root(proc_text(&text), idp) ? 0 : PROC_E_DENIED;
}

int proc_root_ids(const struct proc *p, uid_t *uidp, gid_t *gidp)
{
	int r;

	r = root_id(p, "uid_map", uidp);
	return r ? r : root_id(p, "gid_map", gidp);
}

/* Offsets of a process's time namespace; 0 where there are none (kernels before 5.6). */
static int read_offsets(int dir_fd, int64_t *monotonicp, int64_t *boottimep)
{
	_cleanup_buf_ struct buf text = { 0 };
	int r;

	*monotonicp = *boottimep = 0;
	r = proc_read_at(dir_fd, "timens_offsets", CAP_PROC_FILE, &text);
	if (r == PROC_E_GONE || r == PROC_E_DENIED)
		return 0; /* not there; if the process is gone, proc_open finds out next */
	if (r)
		return r;
	if (!parse_timens_offsets(proc_text(&text), monotonicp, boottimep))
		*monotonicp = *boottimep = 0;
	return 0;
}

static int open_time(struct proc *p, int self_fd)
{
	int64_t monotonic, boottime, own_monotonic, own_boottime;
	int r;

	/*
	 * The file tells the offsets of the namespace for children, which is the process's own
	 * unless it called unshare() itself and has not executed a program since.
	 */
	if (same_ns(p->dir_fd, "ns/time", self_fd, "ns/time"))
		return 0;
	r = read_offsets(p->dir_fd, &monotonic, &boottime);
	if (r)
		return r;
	r = read_offsets(self_fd, &own_monotonic, &own_boottime);
	if (r)
		return r;
	if (__builtin_sub_overflow(monotonic, own_monotonic, &p->monotonic_offset_ns) ||
	    __builtin_sub_overflow(boottime, own_boottime, &p->boottime_offset_ns))
		p->monotonic_offset_ns = p->boottime_offset_ns = 0;
	return 0;
}

int proc_open(pid_t pid, struct proc **outp)
{
	_cleanup_(proc_closep) struct proc *p = NULL;
	_cleanup_buf_ struct buf text = { 0 };
	_cleanup_close_ int self_fd = -1;
	struct parse_status status;
	struct parse_stat stat;
	char path[32];
	size_t n;
	int r;

	if (pid <= 0)
		return PROC_E_GONE;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->pid = pid;
	p->pid_fd = p->dir_fd = -1;

	p->pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (p->pid_fd < 0) {
		/* EINVAL (ENOENT since 6.15): a thread of a process, not a process */
		if (errno == ESRCH || errno == EINVAL || errno == ENOENT)
			return PROC_E_GONE;
		return proc_error_of(errno);
	}
	snprintf(path, sizeof(path), "/proc/%d", pid);
	p->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->dir_fd < 0) {
		/* alive but not to be seen: /proc is mounted with hidepid */
		if (errno == ENOENT && proc_alive(p))
			return PROC_E_DENIED;
		return proc_error_of(errno);
	}
	self_fd = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (self_fd < 0)
		return -errno;

	r = read_stat(p, &text, &stat);
	if (r)
		return r;
	p->start = stat.start;
	p->parent = (pid_t)stat.parent;
	n = MIN(text_len(stat.comm), sizeof(p->comm) - 1);
	memcpy(p->comm, stat.comm.p, n);
	r = proc_status(p, &status);
	if (r)
		return r;
	p->inner_pid = status.inner_pid > 0 ? status.inner_pid : pid;
	p->uid = status.uid;
	p->euid = status.euid;
	p->suid = status.suid;
	p->fsuid = status.fsuid;
	p->gid = status.gid;
	p->egid = status.egid;
	/* links of another user's process may not be seen: then nothing is taken to be ours */
	p->same_mount_ns = same_ns(p->dir_fd, "ns/mnt", self_fd, "ns/mnt");
	p->same_pid_ns = same_ns(p->dir_fd, "ns/pid", self_fd, "ns/pid");
	r = open_time(p, self_fd);
	if (r)
		return r;

	if (!proc_alive(p))
		return PROC_E_GONE;
	*outp = TAKE_PTR(p);
	return 0;
}

void proc_close(struct proc *p)
{
	if (!p)
		return;
	fd_close(p->pid_fd);
	fd_close(p->dir_fd);
	free(p);
}

bool proc_alive(const struct proc *p)
{
	struct pollfd poll_fd = { .fd = p->pid_fd, .events = POLLIN };
	int r;

	/* readable once the process has exited, reaped or not */
	do {
		r = poll(&poll_fd, 1, 0);
	} while (r < 0 && errno == EINTR);
	return r == 0;
}

uint64_t proc_start_ns(const struct proc *p)
{
	uint64_t hz = (uint64_t)sysconf(_SC_CLK_TCK);
	struct timespec boot;
	uint64_t start = p->start * (SEC_NS(1) / hz), boot_ns;

	/* counted since boot, sleep included */
	clock_gettime(CLOCK_BOOTTIME, &boot);
	boot_ns = (uint64_t)boot.tv_sec * SEC_NS(1) + (uint64_t)boot.tv_nsec;
	return start - (boot_ns - clock_now_ns());
}

int proc_exec_id(const struct proc *p, uint64_t *idp)
{
	_cleanup_buf_ struct buf text = { 0 };
	struct parse_stat stat;
	uint64_t id[4] = { 0 };
	struct statx stx;
	int r;

	r = read_stat(p, &text, &stat);
	if (r)
		return r;
	/* both are drawn anew by exec; 0 and 1 mean that we may not look */
	if (stat.start_stack <= 1)
		return PROC_E_DENIED;
	id[0] = stat.start_code;
	id[1] = stat.start_stack;
	/* for programs without address randomisation; not a question to the file system */
	if (statx(p->dir_fd, "exe", AT_STATX_DONT_SYNC, STATX_INO, &stx) == 0) {
		id[2] = makedev(stx.stx_dev_major, stx.stx_dev_minor);
		id[3] = stx.stx_ino;
	}
	*idp = hash_bytes(0, id, sizeof(id));
	return 0;
}

uint64_t proc_rss(const struct proc *p)
{
	_cleanup_buf_ struct buf text = { 0 };
	struct text t, word;
	uint64_t pages;

	if (proc_read_at(p->dir_fd, "statm", CAP_PROC_FILE, &text))
		return 0;
	t = proc_text(&text);
	if (!text_word(&t, &word) || !text_word(&t, &word) || !text_u64(word, 10, &pages))
		return 0;
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

int proc_for_each(int (*fn)(void *data, pid_t pid), void *data)
{
	_cleanup_(dir_closep) DIR *dir = opendir("/proc");
	struct dirent *entry;

	if (!dir)
		return -errno;
	while ((errno = 0, entry = readdir(dir))) {
		uint64_t pid;
		int r;

		if (!text_u64(text_of(entry->d_name, strlen(entry->d_name)), 10, &pid) ||
		    pid > INT32_MAX)
			continue;
		r = fn(data, (pid_t)pid);
		if (r)
			return r;
	}
	return -errno;
}
