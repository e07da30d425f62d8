/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other end of a socket.
 *
 * The kernel notes pid, uid and groups of a peer when it connects. The pid's namespace is read
 * from /proc a moment later; a peer that is gone by then, or runs under another uid, has none that
 * is known, and is refused whatever it asks by number.
 *
 * A process has a number in its own pid namespace and in each above: NSpid in its status, from
 * ours inwards. Which of them is the peer's is found by walking from the process's namespace up
 * (NS_GET_PARENT) to the peer's.
 */
#include "proc/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/caps.h"
#include "proc/internal.h"

/* The kernel nests pid namespaces no deeper. */
#define PID_NS_DEPTH 32

static int read_groups(int fd, struct proc_peer *peer)
{
	socklen_t len = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &len) == 0)
		return 0; /* none */
	if (errno != ERANGE)
		return -errno;
	peer->groups = malloc(len);
	if (!peer->groups)
		return -ENOMEM;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, peer->groups, &len) < 0)
		return -errno;
	peer->n_groups = len / sizeof(*peer->groups);
	return 0;
}

/* Which pid namespace; unknown rather than another process's. */
static int read_namespace(struct proc_peer *peer)
{
	_cleanup_(proc_closep) struct proc *p = NULL;
	int r;

	if (peer->pid <= 0)
		return 0;
	r = proc_open(peer->pid, &p);
	if (r)
		return MIN(r, 0);
	if (p->euid != peer->uid)
		return 0;
	peer->same_pid_ns = p->same_pid_ns;
	peer->ns_known =
		proc_ns_id(p->dir_fd, "ns/pid", &peer->ns_dev, &peer->ns_ino) && proc_alive(p);
	return 0;
}

int proc_peer_read(int fd, struct proc_peer *peer)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int r;

	*peer = (struct proc_peer){ 0 };
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -errno;
	peer->pid = cred.pid;
	peer->uid = cred.uid;
	peer->gid = cred.gid;
	r = read_groups(fd, peer);
	if (r == 0)
		r = read_namespace(peer);
	if (r < 0)
		proc_peer_deinit(peer);
	return r;
}

void proc_peer_deinit(struct proc_peer *peer)
{
	free(peer->groups);
	*peer = (struct proc_peer){ 0 };
}

bool proc_peer_in_group(const struct proc_peer *peer, gid_t gid)
{
	size_t i;

	if (peer->gid == gid)
		return true;
	for (i = 0; i < peer->n_groups; i++)
		if (peer->groups[i] == gid)
			return true;
	return false;
}

/* The numbers of a process, ours first. Returns how many, 0 when it is gone. */
static size_t read_numbers(int dir_fd, pid_t *numbers)
{
	_cleanup_buf_ struct buf text = { 0 };
	struct text all, word, line;
	size_t n = 0;
	uint64_t v;

	if (proc_read_at(dir_fd, "status", CAP_PROC_FILE, &text))
		return 0;
	all = proc_text(&text);
	while (text_line(&all, &line)) {
		if (!text_word(&line, &word) || !text_equal(word, "NSpid:"))
			continue;
		while (n < PID_NS_DEPTH + 1 && text_word(&line, &word) && text_u64(word, 10, &v) &&
		       v <= INT32_MAX)
			numbers[n++] = (pid_t)v;
		break;
	}
	return n;
}

/* How many levels the peer's namespace lies above a process's own; -1: it does not. */
static int levels_up(const struct proc_peer *peer, int dir_fd)
{
	_cleanup_close_ int fd = openat(dir_fd, "ns/pid", O_RDONLY | O_CLOEXEC);
	struct stat st;
	int level;

	for (level = 0; fd >= 0 && level <= PID_NS_DEPTH; level++) {
		int parent;

		if (fstat(fd, &st) < 0)
			return -1;
		if (st.st_dev == peer->ns_dev && st.st_ino == peer->ns_ino)
			return level;
		parent = ioctl(fd, NS_GET_PARENT);
		fd_close(fd);
		fd = parent;
	}
	return -1;
}

/* The peer's number for the process of a /proc/PID; 0: it has none. */
static pid_t number_for(const struct proc_peer *peer, int dir_fd, pid_t wanted)
{
	pid_t numbers[PID_NS_DEPTH + 1];
	size_t n = read_numbers(dir_fd, numbers), i;
	int up;

	if (wanted) {
		for (i = 0; i < n && numbers[i] != wanted; i++)
			;
		if (i == n)
			return 0;
	}
	up = levels_up(peer, dir_fd);
	return up >= 0 && (size_t)up < n ? numbers[n - 1 - (size_t)up] : 0;
}

struct search {
	const struct proc_peer *peer;
	pid_t theirs, ours;
};

static int search_process(void *data, pid_t pid)
{
	struct search *search = data;
	_cleanup_close_ int dir_fd = -1;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0 || number_for(search->peer, dir_fd, search->theirs) != search->theirs)
		return 0;
	search->ours = pid;
	return 1;
}

int proc_peer_pid(const struct proc_peer *peer, pid_t theirs, pid_t *oursp)
{
	struct search search = { .peer = peer, .theirs = theirs };
	int r;

	if (!peer->ns_known)
		return PROC_E_DENIED;
	if (peer->same_pid_ns) {
		*oursp = theirs;
		return 0;
	}
	r = proc_for_each(search_process, &search);
	if (r < 0)
		return r;
	if (!search.ours)
		return PROC_E_GONE;
	*oursp = search.ours;
	return 0;
}

int proc_peer_pid_of(const struct proc_peer *peer, const struct proc *p, pid_t *theirsp)
{
	if (!peer->ns_known)
		return PROC_E_DENIED;
	*theirsp = peer->same_pid_ns ? p->pid : number_for(peer, p->dir_fd, 0);
	return *theirsp ? 0 : PROC_E_GONE;
}

void proc_refresh_ids(struct proc *p)
{
	struct parse_status status;

	if (proc_status(p, &status))
		return;
	p->uid = status.uid;
	p->euid = status.euid;
	p->suid = status.suid;
}

bool proc_owned_by(struct proc *p, uid_t uid)
{
	proc_refresh_ids(p);
	return p->uid == uid && p->euid == uid && p->suid == uid;
}
