/* SPDX-License-Identifier: Apache-2.0 */
/* The mappings of a process, line by line: their text may be tens of megabytes long. */
#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "proc/internal.h"
#include "proc/parse.h"

static int each_line(struct text t, int (*fn)(void *data, const struct proc_mapping *m), void *data)
{
	struct text line;
	int r = 0;

	while (r == 0 && text_line(&t, &line)) {
		struct parse_mapping parsed;
		struct proc_mapping m;

		if (!parse_mapping(line, &parsed))
			continue;
		m = (struct proc_mapping){
			.start = parsed.start,
			.end = parsed.end,
			.offset = parsed.offset,
			.executable = parsed.perms[2] == 'x',
			.path = parsed.path.p,
			.path_len = text_len(parsed.path),
		};
		r = fn(data, &m);
	}
	return r;
}

int proc_each_mapping(const struct proc *p, int (*fn)(void *data, const struct proc_mapping *m),
		      void *data, int *resultp)
{
	_cleanup_close_ int fd = -1;
	_cleanup_free_ char *chunk = NULL;
	const size_t size = KIB(64);
	uint64_t total = 0;
	size_t len = 0;
	int r;

	*resultp = 0;
	r = proc_open_maps(p, &fd);
	if (r)
		return r;
	chunk = malloc(size);
	if (!chunk)
		return -ENOMEM;
	for (;;) {
		const char *last;
		ssize_t n;

		n = read(fd, chunk + len, size - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return proc_error_of(errno);
		if (n == 0)
			return 0;
		total += (uint64_t)n;
		if (total > CAP_MAPS_BYTES)
			return PROC_E_TOO_BIG;
		len += (size_t)n;
		last = memrchr(chunk, '\n', len);
		if (!last) {
			if (len == size)
				len = 0; /* no line of the kernel's is that long */
			continue;
		}
		*resultp = each_line(text_of(chunk, (size_t)(last + 1 - chunk)), fn, data);
		if (*resultp)
			return 0;
		len -= (size_t)(last + 1 - chunk);
		memmove(chunk, last + 1, len);
	}
}
