/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The socket file: made, taken over from a dead predecessor, or handed over by systemd.
 */

#include <stdbool.h>
#include <sys/types.h>

#include "base/util.h"

struct listen_socket {
	int fd;      /* listening, non-blocking */
	int lock_fd; /* of the one daemon that has this path; -1 when systemd has it */
	char *path;
	dev_t dev; /* of the file that was made */
	ino_t ino;
};

/*
 * path NULL: systemd's, if it passed one, else the default (see query/symbols.h; not root:
 * $XDG_RUNTIME_DIR/clrsym/query.sock). group: who may connect, (gid_t)-1: the owner only. Returns
 * 0, or -errno after saying what is wrong.
 */
int listen_open(struct listen_socket *s, const char *path, gid_t group);
/* Removes the file if it is still ours. */
void listen_close(struct listen_socket *s);
