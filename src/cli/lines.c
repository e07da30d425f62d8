/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of text: see lines.h.
 *
 * One buffer holds what came and is no whole line yet. A line that does not fit is handed out in
 * pieces, the buffer's size each, and is known as one until its line break: nobody has to keep it.
 */
#include "cli/lines.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/caps.h"

/* Far above any line that a profiler prints, and a pipe's whole content. */
#define LINES_BYTES KIB(128)

int lines_init(struct lines *lines, int fd)
{
	*lines = (struct lines){ .fd = fd, .data = malloc(LINES_BYTES) };
	return lines->data ? 0 : -ENOMEM;
}

void lines_deinit(struct lines *lines)
{
	free(lines->data);
	lines->data = NULL;
}

int lines_read(struct lines *lines, struct ask *ask, bool *endp)
{
	ssize_t n;
	int r;

	*endp = lines->end;
	if (lines->end)
		return 0;
	if (lines->start) {
		memmove(lines->data, lines->data + lines->start, lines->len);
		lines->start = 0;
	}
	do {
		r = ask_wait_readable(ask, lines->fd);
		if (r)
			return r;
		n = read(lines->fd, lines->data + lines->len, LINES_BYTES - lines->len);
	} while (n < 0 && (errno == EINTR || errno == EAGAIN));
	if (n < 0)
		return -errno;
	lines->end = n == 0;
	lines->len += (size_t)n;
	return 0;
}

bool lines_next(struct lines *lines, struct line *line)
{
	const char *text = lines->data + lines->start;
	const char *nl = memchr(text, '\n', lines->len);
	size_t len = nl ? (size_t)(nl + 1 - text) : lines->len;

	/* the rest of a buffer is a line at the end only, or if it is full */
	if (!len || (!nl && !lines->end && !lines->cut && lines->len < LINES_BYTES))
		return false;
	*line = (struct line){
		.text = text,
		.len = len,
		.text_len = len - (nl != NULL),
		.part = lines->cut || (!nl && !lines->end),
	};
	lines->cut = line->part && !nl;
	lines->start += len;
	lines->len -= len;
	return true;
}
