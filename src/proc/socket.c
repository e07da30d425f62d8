/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reaching a process's diagnostic socket.
 *
 * The runtime binds TMPDIR/dotnet-diagnostic-PID-KEY-socket, mode 0600, where PID is the
 * innermost pid and KEY the start time as the process itself sees it. Dead
 * runtimes leave such files behind by the hundred, any user can make files of that name in
 * a sticky /tmp, and two containers with one /tmp may both have a process 1. Hence:
 *
 *  - The names are computed and looked up, the directory is not searched: its size costs nothing.
 *  - A file counts only if it is a socket that the target (or root, for a target that
 *    dropped root after listening) owns and that nobody else may use.
 *  - A connection counts only if the kernel names the target as the listener (SO_PEERCRED,
 *    taken when listen() was called).
 *
 * The file is opened O_PATH once and everything is asked of that fd, so it cannot be
 * exchanged in between; connecting through /proc/self/fd also lifts sun_path's limit of
 * 108 bytes, which the longer path from outside would break.
 *
 * If the names lead nowhere, the kernel's list of bound sockets (net/unix of the target) is
 * asked for sockets of that pid: a process restored from a checkpoint has another start time
 * than its socket's name says, one may have set TMPDIR within itself, and a socket whose
 * file a cleaner of /tmp deleted still stands there. The list holds text that other
 * processes chose: it only gives paths to try, and a reason for the message.
 */
#include "proc/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/caps.h"

#define SOCKET_DIR_DEFAULT "/tmp"

/* Keys that the name may carry; the runtime writes 0 when it cannot read its own stat. */
#define N_KEYS 3

/* Ends a walk of each_listener(); no code of the module. */
#define FOUND 1000

struct search {
	const struct proc *p;
	bool allow_loose;
	bool follow; /* a path that our user gave may be a link; the runtime makes none */
	int root_fd;
	uid_t uids[6]; /* whose sockets are taken for the target's own */
	uint64_t keys[N_KEYS];
	int fd; /* the connection, once made */

	/* the most telling failure so far, and what it is about */
	int code;
	struct proc_socket_report report;
	uint32_t n_stale;
};

static void search_deinit(struct search *s)
{
	s->root_fd = fd_close(s->root_fd);
	s->fd = fd_close(s->fd);
}

static int64_t floor_div(int64_t a, int64_t b)
{
	return a / b - (a % b < 0);
}

/*
 * In another time namespace the key is the sum of start and offset, rounded: our rounded
 * start plus the rounded offset is that or one less.
 */
static void search_keys(struct search *s)
{
	int64_t tick_ns = 1000000000 / sysconf(_SC_CLK_TCK);
	uint64_t key = s->p->start + (uint64_t)floor_div(s->p->boottime_offset_ns, tick_ns);

	s->keys[0] = key;
	s->keys[1] = key + 1;
	s->keys[2] = 0;
}

static int search_init(struct search *s, const struct proc *p,
		       const struct proc_socket_options *opts)
{
	struct parse_status status;
	uid_t root_uid;
	gid_t root_gid;
	int r;

	*s = (struct search){ .p = p,
			      .allow_loose = opts && opts->allow_loose,
			      .root_fd = -1,
			      .fd = -1,
			      .code = PROC_E_NO_SOCKET };
	search_keys(s);
	/* anew: it may have changed its ids since it was opened */
	r = proc_status(p, &status);
	if (r)
		return r;
	s->uids[0] = status.uid;
	s->uids[1] = status.euid;
	s->uids[2] = status.suid;
	s->uids[3] = status.fsuid;
	/* root, and who is root to the target: either could do to it what it likes */
	s->uids[4] = 0;
	s->uids[5] = proc_root_ids(p, &root_uid, &root_gid) == 0 ? root_uid : 0;
	return proc_open_root(p, &s->root_fd);
}

static bool own_uid(const struct search *s, uid_t uid)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(s->uids); i++) {
		if (s->uids[i] == uid)
			return true;
	}
	return false;
}

static int weight(int code)
{
	static const int order[] = {
		PROC_E_NO_SOCKET,  PROC_E_DENIED,       PROC_E_SOCKET_GONE, PROC_E_STALE_SOCKET,
		PROC_E_WRONG_PEER, PROC_E_LOOSE_SOCKET, PROC_E_BUSY,
	};
	int i;

	for (i = 0; i < (int)ARRAY_SIZE(order); i++) {
		if (order[i] == code)
			return i;
	}
	return -1;
}

/* Keeps the failure that says most. */
static void search_note(struct search *s, int code, const struct proc_socket_report *report)
{
	if (weight(code) < weight(s->code) ||
	    (weight(code) == weight(s->code) && s->report.path[0]))
		return;
	s->code = code;
	s->report = *report;
}

static int connect_fd(struct search *s, int path_fd, struct proc_socket_report *report)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	_cleanup_close_ int fd = -1;
	struct ucred peer;
	socklen_t len = sizeof(peer);

	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d", path_fd);
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
		switch (errno) {
		case ECONNREFUSED: return PROC_E_STALE_SOCKET;
		case EAGAIN: return PROC_E_BUSY;
		case EPROTOTYPE: /* listens, but for datagrams or packets */
			return PROC_E_WRONG_PEER;
		default: return proc_error_below(errno, PROC_E_DENIED);
		}
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return -errno;
	report->peer_pid = peer.pid;
	report->peer_uid = peer.uid;
	if (peer.pid != s->p->pid || (!own_uid(s, peer.uid) && !s->allow_loose))
		return PROC_E_WRONG_PEER;
	s->fd = TAKE_FD(fd);
	return 0;
}

/* 0 or a positive errno. */
static int open_path(const struct search *s, const char *path, int *fdp)
{
	uint64_t flags = O_PATH | (s->follow ? 0 : O_NOFOLLOW);
	_cleanup_close_ int cwd_fd = -1;
	int fd;

	if (path[0] == '/') {
		fd = proc_openat2(s->root_fd, path, flags, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
	} else {
		/* a relative TMPDIR is relative to where the process stood when it bound */
		cwd_fd = openat(s->p->dir_fd, "cwd", O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (cwd_fd < 0)
			return errno;
		fd = proc_openat2(cwd_fd, path, flags, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);
	}
	if (fd < 0)
		return errno;
	*fdp = fd;
	return 0;
}

/*
 * Opens a name as ourselves (a directory may have been closed to a target that dropped its
 * rights) and, failing that, as the target (fs.protected_symlinks lets only its owner follow
 * a link in a sticky directory). 0, -errno or a code.
 */
static int search_open(const struct search *s, const char *path, int *fdp)
{
	int err = open_path(s, path, fdp);

	if (err == EACCES) {
		_cleanup_rights_ struct rights rights = RIGHTS_OWN;
		int r = rights_borrow(&rights, s->p);

		if (r)
			return r;
		err = open_path(s, path, fdp);
	}
	if (err == EACCES || err == EPERM)
		return PROC_E_DENIED;
	return err ? proc_error_below(err, PROC_E_NO_SOCKET) : 0;
}

/*
 * Tries one path. Returns 0 when connected, a code when this path is not the one (noted
 * in s), or -errno.
 */
static int search_try(struct search *s, const char *path)
{
	struct proc_socket_report report = { 0 };
	_cleanup_close_ int path_fd = -1;
	struct stat st;
	int r;

	snprintf(report.path, sizeof(report.path), "%s", path);
	r = search_open(s, path, &path_fd);
	if (r == 0 && fstat(path_fd, &st) < 0)
		r = PROC_E_NO_SOCKET;
	if (r == 0) {
		report.owner = st.st_uid;
		report.mode = st.st_mode;
		if (!S_ISSOCK(st.st_mode) ||
		    (!s->allow_loose && (!own_uid(s, st.st_uid) || (st.st_mode & 077))))
			r = PROC_E_LOOSE_SOCKET;
		else
			r = connect_fd(s, path_fd, &report);
	}
	if (r == 0)
		s->report = report;
	else if (r == PROC_E_STALE_SOCKET)
		s->n_stale++;
	if (r > 0)
		search_note(s, r, &report);
	return r;
}

int proc_socket_dir(const struct proc *p, char **dirp)
{
	_cleanup_free_ char *dir = NULL;
	int r;

	r = proc_getenv(p, "TMPDIR", &dir);
	if (r && r != PROC_E_TOO_BIG)
		return r;
	if (!dir || !*dir) {
		free(dir);
		dir = strdup(SOCKET_DIR_DEFAULT);
		if (!dir)
			return -ENOMEM;
	}
	*dirp = TAKE_PTR(dir);
	return 0;
}

static int socket_path(char **pathp, const char *dir, pid_t pid, uint64_t key)
{
	const char *slash = dir[strlen(dir) - 1] == '/' ? "" : "/";

	return asprintf(pathp, "%s%sdotnet-diagnostic-%d-%llu-socket", dir, slash, pid,
			(unsigned long long)key) < 0
		       ? -ENOMEM
		       : 0;
}

/* The computed names below dir. */
static int search_dir(struct search *s, const char *dir)
{
	int r = PROC_E_NO_SOCKET;
	size_t i;

	for (i = 0; i < N_KEYS; i++) {
		_cleanup_free_ char *path = NULL;

		r = socket_path(&path, dir, s->p->inner_pid, s->keys[i]);
		if (r < 0)
			return r;
		r = search_try(s, path);
		if (r <= 0)
			return r;
	}
	return r;
}

static bool own_key(const struct search *s, uint64_t key)
{
	size_t i;

	for (i = 0; i < N_KEYS; i++) {
		if (s->keys[i] == key)
			return true;
	}
	return false;
}

/* Calls fn for each listening socket of that pid in the target's network namespace. */
static int each_listener(const struct proc *p, int (*fn)(void *, const char *, uint64_t),
			 void *data)
{
	_cleanup_fclose_ FILE *file = NULL;
	_cleanup_free_ char *line = NULL;
	size_t size = 0;
	ssize_t n;
	int fd, r;

	fd = openat(p->dir_fd, "net/unix", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return proc_error_of(errno);
	file = fdopen(fd, "r");
	if (!file) {
		fd_close(fd);
		return -ENOMEM;
	}
	while ((n = getline(&line, &size, file)) > 0) {
		struct parse_unix_socket sock;
		char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
		uint64_t key;

		if (line[n - 1] == '\n')
			n--;
		if (!parse_unix_socket(text_of(line, (size_t)n), &sock) || !sock.listening ||
		    !parse_socket_name(text_basename(sock.path), p->inner_pid, &key) ||
		    text_len(sock.path) >= sizeof(path))
			continue;
		*stpncpy(path, sock.path.p, text_len(sock.path)) = '\0';
		r = fn(data, path, key);
		if (r)
			return r;
	}
	return 0;
}

struct listeners {
	struct search *s;
	unsigned int n_tries;
};

static int listener_try(void *data, const char *path, uint64_t key)
{
	struct listeners *l = data;
	int r;

	if (l->n_tries++ >= CAP_SOCKET_TRIES)
		return PROC_E_NO_SOCKET;
	r = search_try(l->s, path);
	if (r < 0)
		return r;
	if (r == 0)
		return FOUND;
	if (r == PROC_E_NO_SOCKET && own_key(l->s, key)) {
		struct proc_socket_report report = { 0 };

		snprintf(report.path, sizeof(report.path), "%s", path);
		search_note(l->s, PROC_E_SOCKET_GONE, &report);
	}
	return 0;
}

/* Counts what earlier processes of that pid left in dir: for the message only. */
static void count_stale(struct search *s, const char *dir)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_(dir_closep) DIR *stream = NULL;
	_cleanup_close_ int path_fd = -1;
	unsigned int n_seen = 0;
	struct dirent *entry;
	int fd;

	/* the dot makes it what a link leads to */
	if (asprintf(&path, "%s/.", dir) < 0) {
		path = NULL;
		return;
	}
	if (search_open(s, path, &path_fd))
		return;
	fd = openat(path_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	stream = fdopendir(fd);
	if (!stream) {
		fd_close(fd);
		return;
	}
	while (n_seen++ < CAP_TMPDIR_ENTRIES && (entry = readdir(stream))) {
		uint64_t key;

		if (parse_socket_name(text_of(entry->d_name, strlen(entry->d_name)),
				      s->p->inner_pid, &key) &&
		    !own_key(s, key))
			s->n_stale++;
	}
}

static int search_run(struct search *s, const struct proc_socket_options *opts, bool count)
{
	_cleanup_free_ char *dir = NULL;
	struct listeners listeners = { .s = s };
	int r;

	if (opts && opts->path) {
		s->follow = true;
		return search_try(s, opts->path);
	}
	r = proc_socket_dir(s->p, &dir);
	if (r)
		return r;
	r = search_dir(s, dir);
	if (r <= 0)
		return r;
	if (strcmp(dir, SOCKET_DIR_DEFAULT) != 0) {
		r = search_dir(s, SOCKET_DIR_DEFAULT);
		if (r <= 0)
			return r;
	}
	/* a listener whose queue is full is there all right */
	if (s->code == PROC_E_BUSY)
		return s->code;
	r = each_listener(s->p, listener_try, &listeners);
	if (r == FOUND)
		return 0;
	if (r < 0)
		return r;
	if (count)
		count_stale(s, dir);
	return s->code;
}

int proc_connect_socket(const struct proc *p, const struct proc_socket_options *opts, int *fdp,
			struct proc_socket_report *report)
{
	_cleanup_(search_deinit) struct search s;
	int r;

	if (report)
		*report = (struct proc_socket_report){ 0 };
	r = search_init(&s, p, opts);
	if (r == 0)
		r = search_run(&s, opts, report != NULL);
	/* the pid in the peer's credentials is only a number: its owner must still live */
	if (r >= 0 && !proc_alive(p))
		r = PROC_E_GONE;
	if (report) {
		*report = s.report;
		report->stale = s.n_stale;
	}
	if (r)
		return r;
	*fdp = TAKE_FD(s.fd);
	return 0;
}

static int listener_found(void *data, const char *path UNUSED, uint64_t key)
{
	return own_key(data, key) ? FOUND : 0;
}

/*
 * Asked of every process of the machine that has no libcoreclr.so, so the file comes first:
 * the list of all sockets is read only for the few that have one.
 */
int proc_socket_listens(const struct proc *p, bool *yesp)
{
	_cleanup_(search_deinit) struct search s;
	_cleanup_free_ char *dir = NULL;
	size_t i;
	int r;

	*yesp = false;
	r = search_init(&s, p, NULL);
	if (r)
		return r;
	r = proc_socket_dir(p, &dir);
	if (r)
		return r;
	for (i = 0; i < N_KEYS; i++) {
		_cleanup_free_ char *path = NULL;
		_cleanup_close_ int fd = -1;

		r = socket_path(&path, dir, p->inner_pid, s.keys[i]);
		if (r == 0)
			r = search_open(&s, path, &fd);
		if (r < 0)
			return r;
		if (r == 0)
			break;
	}
	if (r)
		return 0;
	r = each_listener(p, listener_found, &s);
	if (r < 0)
		return r;
	*yesp = r == FOUND;
	return r == FOUND ? 0 : r;
}
