/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * lines: text from a file or pipe in pieces, as it comes: all whole lines that are there are handed
 * out before it is waited for more. Memory is bounded whatever the text.
 */

#include <stdbool.h>
#include <stddef.h>

#include "cli/ask.h"

struct lines {
	int fd;
	char *data;
	size_t start, len; /* in data: what has not been handed out */
	bool cut;          /* the line under way is too long: its rest is, too */
	bool end;
};

struct line {
	const char *text; /* until the next lines_read(); with its line break, if it has one */
	size_t len;       /* all of it */
	size_t text_len;  /* without the line break */
	bool part;        /* a piece of a line that is too long to be looked at */
};

/* Returns 0 or -ENOMEM. The fd stays the caller's. */
int lines_init(struct lines *lines, int fd);
void lines_deinit(struct lines *lines);
/*
 * Waits for more, keeping our own attaches going. Only when lines_next() has returned false.
 * Returns 0, 1 (a signal came; with *endp: nothing more will come) or -errno.
 */
int lines_read(struct lines *lines, struct ask *ask, bool *endp);
/* The next line of what is there. */
bool lines_next(struct lines *lines, struct line *line);
