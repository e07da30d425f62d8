/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket file.
 *
 * One daemon has a path: it holds a lock on PATH.lock as long as it runs, so whoever gets the lock
 * knows that a socket at the path has no daemon behind it, unless it is a foreign one. What lies at
 * the path is removed only if it is a socket, ours, and nobody listens on it. The new socket gets
 * its owner and mode under a name of its own before it takes the path, so nobody can connect with
 * rights that it was not meant to give.
 */
#include "daemon/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <systemd/sd-daemon.h>

#include "base/escape.h"
#include "base/log.h"
#include "query/symbols.h"

#define BACKLOG 1024

static int say(const struct listen_socket *s, int error, const char *what)
{
	log_error("%s: %s", escape_terminal(s->path, strlen(s->path)),
		  what ? what : strerror(-error));
	return error;
}

static int fill_address(const char *path, struct sockaddr_un *address)
{
	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (strlen(path) >= sizeof(address->sun_path))
		return -ENAMETOOLONG;
	memcpy(address->sun_path, path, strlen(path) + 1);
	return 0;
}

/* Does anybody listen there? */
static bool is_alive(const struct sockaddr_un *address)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	/* anything but a clear refusal counts as life: a full queue, too */
	return fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ||
	       errno != ECONNREFUSED;
}

/* Removes what an earlier run left. */
static int clear_path(struct listen_socket *s, const struct sockaddr_un *address)
{
	struct stat st;

	if (lstat(s->path, &st) < 0)
		return errno == ENOENT ? 0 : say(s, -errno, NULL);
	if (!S_ISSOCK(st.st_mode))
		return say(s, -EEXIST, "there is something that is no socket; it is left alone");
	if (st.st_uid != geteuid())
		return say(s, -EEXIST, "another user's socket is there; it is left alone");
	if (is_alive(address))
		return say(s, -EADDRINUSE, "somebody listens there already");
	return unlink(s->path) < 0 && errno != ENOENT ? say(s, -errno, NULL) : 0;
}

/* The directory of the path, for root and its own user alone to write. */
static int make_directory(struct listen_socket *s)
{
	_cleanup_free_ char *dir = strdup(s->path);
	char *slash = dir ? strrchr(dir, '/') : NULL;

	if (!dir)
		return -ENOMEM;
	if (!slash || slash == dir)
		return 0;
	*slash = '\0';
	if (mkdir(dir, 0755) < 0 && errno != EEXIST)
		return say(s, -errno, NULL);
	return 0;
}

static int take_lock(struct listen_socket *s)
{
	char name[PATH_MAX];

	if ((size_t)snprintf(name, sizeof(name), "%s.lock", s->path) >= sizeof(name))
		return -ENAMETOOLONG;
	s->lock_fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (s->lock_fd < 0)
		return say(s, -errno, NULL);
	if (flock(s->lock_fd, LOCK_EX | LOCK_NB) < 0)
		return say(s, -errno,
			   errno == EWOULDBLOCK ? "another clrsymd listens there" : NULL);
	return 0;
}

static int make_socket(struct listen_socket *s, gid_t group)
{
	struct sockaddr_un address, temporary;
	char name[PATH_MAX];
	struct stat st;
	mode_t mask;
	int r;

	r = fill_address(s->path, &address);
	snprintf(name, sizeof(name), "%s.%d", s->path, (int)getpid());
	if (r == 0)
		r = fill_address(name, &temporary);
	if (r < 0)
		return say(s, r, "the path is too long for a socket");
	r = clear_path(s, &address);
	if (r < 0)
		return r;
	s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->fd < 0)
		return say(s, -errno, NULL);
	unlink(name);
	mask = umask(0177);
	r = bind(s->fd, (const struct sockaddr *)&temporary, sizeof(temporary)) < 0 ? -errno : 0;
	umask(mask);
	if (r < 0)
		return say(s, r, NULL);
	if ((group != (gid_t)-1 && (lchown(name, (uid_t)-1, group) < 0 || chmod(name, 0660) < 0)) ||
	    listen(s->fd, BACKLOG) < 0 || lstat(name, &st) < 0 || rename(name, s->path) < 0) {
		r = -errno;
		unlink(name);
		return say(s, r, NULL);
	}
	s->dev = st.st_dev;
	s->ino = st.st_ino;
	return 0;
}

/* A socket that systemd made and holds for us. 1: there is none. */
static int take_activated(struct listen_socket *s)
{
	int n = sd_listen_fds(1);

	if (n <= 0)
		return n < 0 ? n : 1;
	if (n > 1 || sd_is_socket(SD_LISTEN_FDS_START, AF_UNIX, SOCK_STREAM, 1) <= 0) {
		log_error("systemd passed something else than one listening unix socket");
		return -EINVAL;
	}
	s->fd = SD_LISTEN_FDS_START;
	if (fcntl(s->fd, F_SETFL, O_NONBLOCK) < 0)
		return -errno;
	return 0;
}

static char *default_path(void)
{
	const char *dir = getenv("XDG_RUNTIME_DIR");
	char *path;

	if (geteuid() == 0)
		return strdup(QUERY_DEFAULT_SOCKET);
	if (!dir || *dir != '/')
		return NULL;
	return asprintf(&path, "%s/clrsym/query.sock", dir) < 0 ? NULL : path;
}

int listen_open(struct listen_socket *s, const char *path, gid_t group)
{
	int r;

	*s = (struct listen_socket){ .fd = -1, .lock_fd = -1 };
	if (!path) {
		r = take_activated(s);
		if (r <= 0)
			return r;
	}
	s->path = path ? strdup(path) : default_path();
	if (!s->path) {
		log_error("no place for the query socket: --socket PATH, or XDG_RUNTIME_DIR");
		return -ENOENT;
	}
	r = make_directory(s);
	if (r == 0)
		r = take_lock(s);
	if (r == 0)
		r = make_socket(s, group);
	return r;
}

void listen_close(struct listen_socket *s)
{
	struct stat st;

	if (s->ino && lstat(s->path, &st) == 0 && st.st_dev == s->dev && st.st_ino == s->ino)
		unlink(s->path);
	fd_close(s->fd);
	fd_close(s->lock_fd);
	free(s->path);
	*s = (struct listen_socket){ .fd = -1, .lock_fd = -1 };
}
