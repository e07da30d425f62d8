/* SPDX-License-Identifier: Apache-2.0 */
/* One thread, poll() over everything, no errors handled but by ending the program. */
#include "tests/lib/server.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/caps.h"

#define MAX_CONNECTIONS 16

struct connection {
	int fd; /* -1: free */
	struct wire wire;
};

struct server {
	server_fn fn;
	void *data;
	int listen_fd, wake_fds[2];
	pthread_t thread;
	pthread_mutex_t lock; /* connections */
	struct connection connections[MAX_CONNECTIONS];
};

static void send_all(int fd, const uint8_t *data, size_t len, int pass_fd)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)data, .iov_len = len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *cmsg;
	ssize_t n;

	if (pass_fd >= 0) {
		msg.msg_control = control;
		msg.msg_controllen = sizeof(control);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &pass_fd, sizeof(int));
	}
	while (iov.iov_len) {
		n = sendmsg(fd, &msg, MSG_NOSIGNAL);
		if (n < 0)
			return;
		iov.iov_base = (char *)iov.iov_base + n;
		iov.iov_len -= (size_t)n;
		msg.msg_control = NULL;
		msg.msg_controllen = 0;
	}
}

static void answer(struct server *s, struct connection *c, json_t *msg)
{
	_cleanup_buf_ struct buf out;
	struct wire_call call;
	int fd = -1;

	buf_init(&out, MIB(256));
	must(wire_parse_call(msg, &call) == 0);
	s->fn(s->data, &call, &out, &fd);
	must(out.error == 0);
	send_all(c->fd, out.data, out.len, fd);
}

static void drop(struct connection *c)
{
	c->fd = fd_close(c->fd);
	wire_deinit(&c->wire);
}

static void receive(struct server *s, struct connection *c)
{
	json_t *msg;
	uint8_t *p;
	size_t size;
	ssize_t n;

	must(wire_room(&c->wire, KIB(256), &p, &size) == 0);
	n = recv(c->fd, p, size, 0);
	if (n <= 0) {
		drop(c);
		return;
	}
	wire_received(&c->wire, (size_t)n);
	while (wire_next(&c->wire, &msg) == 0) {
		answer(s, c, msg);
		json_decref(msg);
	}
}

static void accept_one(struct server *s)
{
	int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	size_t i;

	if (fd < 0)
		return;
	for (i = 0; i < MAX_CONNECTIONS; i++)
		if (s->connections[i].fd < 0)
			break;
	must(i < MAX_CONNECTIONS);
	s->connections[i].fd = fd;
	wire_init(&s->connections[i].wire, &wire_request_limits);
}

static void *serve(void *data)
{
	struct server *s = data;
	struct pollfd fds[MAX_CONNECTIONS + 2];
	size_t i;

	for (;;) {
		for (i = 0; i < MAX_CONNECTIONS; i++)
			fds[i] = (struct pollfd){ .fd = s->connections[i].fd, .events = POLLIN };
		fds[i++] = (struct pollfd){ .fd = s->listen_fd, .events = POLLIN };
		fds[i++] = (struct pollfd){ .fd = s->wake_fds[0], .events = POLLIN };
		if (poll(fds, i, -1) < 0)
			continue;
		if (fds[MAX_CONNECTIONS + 1].revents)
			return NULL;
		pthread_mutex_lock(&s->lock);
		for (i = 0; i < MAX_CONNECTIONS; i++)
			if (fds[i].revents)
				receive(s, &s->connections[i]);
		if (fds[MAX_CONNECTIONS].revents)
			accept_one(s);
		pthread_mutex_unlock(&s->lock);
	}
}

struct server *server_start(const char *path, server_fn fn, void *data)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct server *s = calloc(1, sizeof(*s));
	size_t i;

	must(s);
	s->fn = fn;
	s->data = data;
	pthread_mutex_init(&s->lock, NULL);
	for (i = 0; i < MAX_CONNECTIONS; i++)
		s->connections[i].fd = -1;
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	unlink(path);
	s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(bind(s->listen_fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
	must(listen(s->listen_fd, 16) == 0);
	must(pipe(s->wake_fds) == 0);
	must(pthread_create(&s->thread, NULL, serve, s) == 0);
	return s;
}

void server_kill(struct server *s)
{
	size_t i;

	close(s->wake_fds[1]);
	pthread_join(s->thread, NULL);
	close(s->wake_fds[0]);
	close(s->listen_fd);
	for (i = 0; i < MAX_CONNECTIONS; i++)
		if (s->connections[i].fd >= 0)
			drop(&s->connections[i]);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void server_broadcast(struct server *s, const char *text, size_t len)
{
	size_t i;

	pthread_mutex_lock(&s->lock);
	for (i = 0; i < MAX_CONNECTIONS; i++)
		if (s->connections[i].fd >= 0)
			send_all(s->connections[i].fd, (const uint8_t *)text, len, -1);
	pthread_mutex_unlock(&s->lock);
}
