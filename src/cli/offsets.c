/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From file offsets to addresses: see offsets.h.
 *
 * What the recording itself tells of mappings comes first, the newest of it that fits: it is true
 * for the sample that follows it, and outlives the process. Else the process is looked at as it is
 * now, not more often than every PLACE_REFRESH_NS; the runtime keeps its executable memory where it
 * is, so that is right in nearly every case, and an offset that is mapped twice has no answer.
 */
#include "cli/offsets.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "proc/proc.h"

/* The kernel itself gives out no longer ones. */
#define CAP_OFFSETS_PATH 4096u

static void clear(struct offsets_mapping **itemsp, size_t *np)
{
	size_t i;

	for (i = 0; i < *np; i++)
		free((*itemsp)[i].path);
	free(*itemsp);
	*itemsp = NULL;
	*np = 0;
}

void offsets_deinit(struct offsets *o)
{
	clear(&o->told, &o->n_told);
	clear(&o->now, &o->n_now);
}

static int add(struct offsets_mapping **itemsp, size_t *np, const struct stacks_mapping *m)
{
	struct offsets_mapping *more;

	if (!m->executable || !m->path_len || *np == CAP_MODULES)
		return 0;
	/* grows at powers of two */
	if (!(*np & (*np - 1))) {
		more = reallocarray(*itemsp, *np ? 2 * *np : 1, sizeof(*more));
		if (!more)
			return -ENOMEM;
		*itemsp = more;
	}
	more = &(*itemsp)[*np];
	*more = (struct offsets_mapping){
		.start = m->start,
		.len = m->len,
		.offset = m->offset,
		.path = strndup(m->path, MIN(m->path_len, (size_t)CAP_OFFSETS_PATH)),
	};
	if (!more->path)
		return -ENOMEM;
	more->path_len = strlen(more->path);
	(*np)++;
	return 0;
}

int offsets_add(struct offsets *o, const struct stacks_mapping *m)
{
	return add(&o->told, &o->n_told, m);
}

static int on_mapping(void *data, const struct proc_mapping *m)
{
	struct offsets *o = data;
	struct stacks_mapping mapping = {
		.start = m->start,
		.len = m->end - m->start,
		.offset = m->offset,
		.path = m->path,
		.path_len = m->path_len,
		.executable = m->executable,
	};

	return add(&o->now, &o->n_now, &mapping);
}

/* What it has now; a process that has gone keeps what it had. */
static int look(struct offsets *o, pid_t pid)
{
	_cleanup_(proc_closep) struct proc *proc = NULL;
	struct offsets fresh = { 0 };
	int r, result = 0;

	o->read_ns = clock_now_ns();
	r = proc_open(pid, &proc);
	if (r == 0)
		r = proc_each_mapping(proc, on_mapping, &fresh, &result);
	if (r == 0)
		r = result;
	if (r) {
		clear(&fresh.now, &fresh.n_now);
		return r == -ENOMEM ? r : 0;
	}
	clear(&o->now, &o->n_now);
	o->now = fresh.now;
	o->n_now = fresh.n_now;
	return 0;
}

static bool holds(const struct offsets_mapping *m, const char *path, size_t len, uint64_t offset)
{
	return m->path_len == len && offset >= m->offset && offset - m->offset < m->len &&
	       memcmp(m->path, path, len) == 0;
}

/* Among those of now: how many (2: more than one), and the address at the last of them. */
static unsigned int find_now(const struct offsets *o, const char *path, size_t len, uint64_t offset,
			     uint64_t *addrp)
{
	unsigned int n = 0;
	size_t i;

	for (i = 0; i < o->n_now && n < 2; i++) {
		if (!holds(&o->now[i], path, len, offset))
			continue;
		*addrp = o->now[i].start + (offset - o->now[i].offset);
		n++;
	}
	return n;
}

int offsets_find(struct offsets *o, pid_t pid, const char *path, size_t len, uint64_t offset,
		 uint64_t *addrp)
{
	unsigned int n;
	size_t i;
	int r;

	for (i = o->n_told; i-- > 0;) {
		if (!holds(&o->told[i], path, len, offset))
			continue;
		*addrp = o->told[i].start + (offset - o->told[i].offset);
		return 0;
	}
	n = find_now(o, path, len, offset, addrp);
	if (n == 0 && (!o->read_ns || clock_now_ns() - o->read_ns > PLACE_REFRESH_NS)) {
		r = look(o, pid);
		if (r < 0)
			return r;
		n = find_now(o, path, len, offset, addrp);
	}
	return n == 1 ? 0 : 1;
}
