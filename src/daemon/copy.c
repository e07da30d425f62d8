/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process's code as others have it: the shared snapshot, and the changes that monitors are sent.
 *
 * Made when the first client asks, and given up some time after the last. The code map notes which
 * of its slots changed; as deferred work these are brought over, slot by slot, each by what it
 * holds now. So the copy may lag behind for a moment, but never differs once the notes are used up;
 * only then are times up to known_until declared final in it.
 *
 * A generation that is full is left as it is, its known_until standing still, while a larger one
 * is filled in slices; then it is marked as replaced. The same happens at an exec.
 */
#include "daemon/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "query/snapshot.h"
#include "reply/reply.h"

/* How often known_until moves on while nothing changes. */
#define TICK_NS MS_NS(50)

struct copy {
	struct server *srv;
	struct entry *entry;
	struct codemap *map;  /* that is tracked */
	uint32_t incarnation; /* that it is of */
	struct snapshot_writer *writer, *former;
	unsigned int size_class;
	uint32_t generation;
	uint32_t fill_slot;
	bool filling; /* slots from fill_slot on have not been brought over */
	bool ready;   /* writer has all there is */
	bool closed;  /* the process has ended, and so has the snapshot */
	int error;    /* no snapshot can be made: -errno */
	size_t readers;
	struct conn **monitors;
	size_t n_monitors;
	uint64_t idle_ns; /* without readers since then */
	uint64_t touched_ns;
	bool changed; /* since the last tick */
	bool settled; /* nothing is left to do for its memory */
	struct loop_work work;
	struct loop_timer tick;
	struct buf function, function_short, change;
};

static bool copy_work(struct loop_work *work, uint64_t deadline_ns);

/* -- the snapshot ------------------------------------------------------------------------- */

static void drop_writers(struct copy *copy, bool replaced)
{
	if (copy->former)
		snapshot_close(copy->former, true);
	if (copy->writer && !copy->closed)
		snapshot_close(copy->writer, replaced);
	snapshot_writer_free(TAKE_PTR(copy->former));
	snapshot_writer_free(TAKE_PTR(copy->writer));
	copy->ready = copy->filling = copy->closed = false;
}

/* No snapshot for now: one that lacks something must not be declared final. */
static void give_up(struct copy *copy, int error)
{
	drop_writers(copy, true);
	copy->error = error;
	server_wake(copy->srv, copy->entry);
}

/* A new generation takes the place of the one that is there, as soon as it is filled. */
static void begin_writer(struct copy *copy)
{
	struct target_status status;
	struct snapshot_identity identity = {
		.pid = copy->entry->proc->pid,
		.start = copy->entry->proc->start,
		.start_ns = target_began(copy->entry->target),
		.generation = ++copy->srv->generations,
	};
	struct snapshot_writer *writer = NULL;
	int r;

	target_get_status(copy->entry->target, &status);
	identity.incarnation = status.incarnation;
	r = snapshot_writer_new(&writer, &identity, copy->size_class);
	if (r) {
		give_up(copy, r);
		return;
	}
	if (copy->former || !copy->ready)
		snapshot_writer_free(TAKE_PTR(copy->writer));
	else
		copy->former = TAKE_PTR(copy->writer);
	copy->writer = writer;
	copy->generation = identity.generation;
	copy->ready = copy->closed = copy->settled = false;
	copy->filling = true;
	copy->fill_slot = 0;
}

static void grow(struct copy *copy)
{
	uint32_t dropped;

	if (copy->size_class + 1 == SNAPSHOT_CLASSES) {
		if (log_limit_pass(&copy->srv->limit, clock_now_ns(), &dropped))
			log_warn("pid %d: its snapshot is given up: too much code",
				 (int)copy->entry->proc->pid);
		give_up(copy, -ENOSPC);
		return;
	}
	copy->size_class++;
	begin_writer(copy);
}

/* From when on it is an answer, as codemap_lookup_certain() has it. */
static uint64_t certain_load(const struct codemap_info *info)
{
	return info->freeable ? info->announced : info->load;
}

/* The spelled name alone: whoever wants the parts asks for an export. */
static int fill_body(struct copy *copy, const struct codemap_body *body, struct range_body *out)
{
	struct codemap_info info;
	int r;

	codemap_body_info(copy->map, body, &info);
	r = method_range(copy->map, body, &info, out);
	if (r < 0)
		return r;
	out->range.load = certain_load(&info);
	buf_clear(&copy->function);
	buf_clear(&copy->function_short);
	names_append(&copy->function, &info.name, NAMES_FULL, false);
	names_append(&copy->function_short, &info.name, NAMES_SHORT, false);
	if (copy->function.error || copy->function_short.error)
		return -ENOMEM;
	out->ns_len = out->name_len = out->sig_len = 0;
	out->function = (const char *)copy->function.data;
	out->function_len = (uint32_t)copy->function.len;
	out->short_len = (uint32_t)MIN(copy->function_short.len, copy->function.len);
	return 0;
}

/* It has ended, and nothing else has changed: no text is needed for that. False: it must be put. */
static bool retire_slot(struct copy *copy, uint32_t slot, const struct codemap_body *body)
{
	struct codemap_info info;
	struct range range;

	codemap_body_life(copy->map, body, &info);
	range = method_range_life(&info);
	range.load = certain_load(&info);
	return snapshot_has(copy->writer, slot, &range) &&
	       snapshot_retire(copy->writer, slot, info.unload) == 0;
}

/* Brings one slot over. */
static void put_slot(struct copy *copy, uint32_t slot, const struct codemap_body *body)
{
	struct range_body range;
	int r;

	if (!copy->writer)
		return;
	if (!body) {
		snapshot_remove(copy->writer, slot);
		return;
	}
	r = fill_body(copy, body, &range);
	if (r == 0)
		r = snapshot_put(copy->writer, slot, &range);
	if (r == SNAPSHOT_E_FULL)
		grow(copy);
	else if (r > 0)
		snapshot_remove(copy->writer, slot); /* there can be no such body, nor the last */
	else if (r < 0)
		give_up(copy, r);
}

/* -- monitors ----------------------------------------------------------------------------- */

/* Written once, whatever the number of monitors. */
static void tell_change(struct copy *copy, const char *change, const struct query_method *m)
{
	struct buf *text = &copy->change;
	size_t i;

	buf_clear(text);
	buf_printf(text, "{\"change\":\"%s\",\"method\":{", change);
	query_put_method(text, m);
	buf_puts(text, "}}");
	for (i = 0; i < copy->n_monitors; i++)
		stream_change(copy->monitors[i], text->error ? NULL : text);
}

static void tell_monitors(struct copy *copy, unsigned int what, const struct codemap_body *body)
{
	struct codemap_info info;
	struct query_method m;

	if (!copy->n_monitors || !body)
		return;
	codemap_body_info(copy->map, body, &info);
	if (reply_method(&info, &copy->function, &m) < 0)
		return;
	if (what & CODEMAP_CHANGE_ADDED)
		tell_change(copy, "load", &m);
	if (what & CODEMAP_CHANGE_ENDED)
		tell_change(copy, "unload", &m);
	if (!(what & (CODEMAP_CHANGE_ADDED | CODEMAP_CHANGE_ENDED)))
		tell_change(copy, "alter", &m);
}

static void tell_lost(struct copy *copy)
{
	size_t i;

	for (i = 0; i < copy->n_monitors; i++)
		stream_change(copy->monitors[i], NULL);
}

/* -- the work ----------------------------------------------------------------------------- */

static int on_change(void *data, uint32_t slot, unsigned int what, const struct codemap_body *body)
{
	struct copy *copy = data;

	copy->changed = true;
	copy->settled = false;
	if (what != CODEMAP_CHANGE_ENDED || !copy->writer || !retire_slot(copy, slot, body))
		put_slot(copy, slot, body);
	tell_monitors(copy, what, body);
	return 0;
}

/* Another program now: its map is another, and so is its snapshot. */
static int follow_map(struct copy *copy)
{
	struct codemap *map = target_map(copy->entry->target);
	struct target_status status;
	int r;

	target_get_status(copy->entry->target, &status);
	if (map == copy->map && status.incarnation == copy->incarnation)
		return 0;
	r = codemap_track(map, true);
	if (r < 0)
		return r;
	if (copy->map)
		tell_lost(copy);
	copy->map = map;
	copy->incarnation = status.incarnation;
	if (copy->writer)
		begin_writer(copy);
	return 0;
}

static void fill(struct copy *copy, uint64_t deadline_ns)
{
	while (copy->filling && copy->writer) {
		uint32_t end = MIN(copy->fill_slot + 64, codemap_n_slots(copy->map));

		if (copy->fill_slot >= end) {
			copy->filling = false;
			return;
		}
		for (; copy->fill_slot < end && copy->filling; copy->fill_slot++) {
			uint32_t generation = copy->generation;

			put_slot(copy, copy->fill_slot, codemap_slot(copy->map, copy->fill_slot));
			if (copy->generation != generation)
				break; /* begun anew, larger */
		}
		if (clock_now_ns() >= deadline_ns)
			return;
	}
}

static void published(struct copy *copy, uint64_t known_until)
{
	uint64_t from, to;
	size_t i;

	if (!copy->writer || copy->closed)
		return;
	for (i = 0; codemap_gap_at(copy->map, i, &from, &to); i++)
		snapshot_lost(copy->writer, from, to);
	snapshot_publish(copy->writer, known_until);
	if (copy->former) {
		snapshot_close(copy->former, true);
		snapshot_writer_free(TAKE_PTR(copy->former));
	}
	if (copy->entry->ended) {
		snapshot_close(copy->writer, false);
		copy->closed = true;
	}
	if (!copy->ready) {
		copy->ready = true;
		server_wake(copy->srv, copy->entry);
	}
}

static bool copy_work(struct loop_work *work, uint64_t deadline_ns)
{
	struct copy *copy = container_of(work, struct copy, work);
	uint64_t known = target_known_until(copy->entry->target);
	bool more = true, resync = false;

	if (follow_map(copy) < 0) {
		give_up(copy, -ENOMEM);
		return false;
	}
	do {
		fill(copy, deadline_ns);
		if (copy->filling)
			return true;
		codemap_take_changes(copy->map, 64, on_change, copy, &more, &resync);
		if (resync) {
			tell_lost(copy);
			copy->filling = copy->writer;
			copy->fill_slot = 0;
		}
	} while ((more || copy->filling) && clock_now_ns() < deadline_ns);
	if (more || copy->filling)
		return true;
	published(copy, known);
	return false;
}

void copy_changed(struct entry *e)
{
	loop_work_add(e->copy->srv->loop, &e->copy->work, copy_work);
}

static void copy_free(struct copy *copy)
{
	struct codemap *map = target_map(copy->entry->target);

	drop_writers(copy, true);
	if (copy->map && copy->map == map)
		codemap_track(map, false);
	loop_work_del(&copy->work);
	loop_timer_del(&copy->tick);
	buf_deinit(&copy->function);
	buf_deinit(&copy->function_short);
	buf_deinit(&copy->change);
	free(copy->monitors);
	copy->entry->copy = NULL;
	free(copy);
}

/* Readers of a snapshot that was given up still refer to it. */
static void copy_release(struct copy *copy)
{
	if (!copy->writer && !copy->readers && !copy->n_monitors)
		copy_free(copy);
}

/* Whoever reads the snapshot uses the process, although the daemon is not asked. */
static void touch(struct copy *copy, uint64_t now)
{
	const struct conn *c;
	size_t i;

	if (!copy->readers || now - copy->touched_ns < SEC_NS(1))
		return;
	copy->touched_ns = now;
	for (c = copy->srv->conns; c; c = c->next)
		for (i = 0; i < c->n_copies; i++)
			if (c->copies[i] == copy)
				entry_touch(copy->entry, c->peer.uid);
}

static void on_tick(struct loop_timer *timer)
{
	struct copy *copy = container_of(timer, struct copy, tick);
	uint64_t now = clock_now_ns();

	if (!copy->readers && now - copy->idle_ns >= DEFAULT_SNAPSHOT_IDLE_NS) {
		if (!copy->n_monitors) {
			copy_free(copy);
			return;
		}
		drop_writers(copy, true);
	}
	touch(copy, now);
	/* takes some ms: only while it is quiet */
	if (copy->ready && !copy->changed && !copy->settled)
		copy->settled = !snapshot_settle(copy->writer);
	copy->changed = false;
	if (!copy->writer || copy->closed)
		return;
	if (copy->readers)
		copy_changed(copy->entry);
	loop_timer_set(copy->srv->loop, timer, now + (copy->readers ? TICK_NS : SEC_NS(1)),
		       on_tick);
}

/* -- who uses it -------------------------------------------------------------------------- */

static struct copy *copy_make(struct entry *e, struct conn *c)
{
	struct copy *copy = e->copy ? e->copy : calloc(1, sizeof(*copy));

	if (!copy || e->copy)
		return copy;
	copy->srv = c->srv;
	copy->entry = e;
	buf_init(&copy->function, CAP_QUERY_OUT);
	buf_init(&copy->function_short, CAP_QUERY_OUT);
	buf_init(&copy->change, CAP_QUERY_OUT);
	e->copy = copy;
	if (follow_map(copy) < 0) {
		copy_free(copy);
		return NULL;
	}
	return copy;
}

static size_t bytes_of(const struct copy *copy)
{
	off_t size = lseek(snapshot_writer_fd(copy->writer), 0, SEEK_END);

	return size > 0 ? (size_t)size : 0;
}

static int add_reader(struct copy *copy, struct conn *c)
{
	struct copy **more;
	size_t i;

	for (i = 0; i < c->n_copies; i++)
		if (c->copies[i] == copy)
			return 0;
	more = realloc(c->copies, (c->n_copies + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	c->copies = more;
	more[c->n_copies++] = copy;
	copy->readers++;
	return 0;
}

int copy_get(struct entry *e, struct conn *c, int *fdp, uint32_t *generationp, size_t *bytesp)
{
	struct copy *copy = copy_make(e, c);
	int r;

	if (!copy)
		return -ENOMEM;
	if (!copy->writer && !copy->error) {
		copy->idle_ns = clock_now_ns();
		begin_writer(copy);
		copy_changed(e);
		loop_timer_set(copy->srv->loop, &copy->tick, copy->idle_ns + TICK_NS, on_tick);
	}
	if (copy->error) {
		r = copy->error;
		copy->error = 0; /* who asks again may have more luck */
		copy_release(copy);
		return r;
	}
	if (!copy->ready)
		return -EAGAIN;
	r = add_reader(copy, c);
	if (r < 0)
		return r;
	loop_timer_set(copy->srv->loop, &copy->tick, clock_now_ns(), on_tick);
	*generationp = copy->generation;
	*bytesp = bytes_of(copy);
	*fdp = fcntl(snapshot_writer_fd(copy->writer), F_DUPFD_CLOEXEC, 0);
	return *fdp < 0 ? -errno : 0;
}

int copy_add_monitor(struct entry *e, struct conn *c)
{
	struct copy *copy = copy_make(e, c);
	struct conn **more;
	size_t i, n = 0;

	if (!copy)
		return -ENOMEM;
	for (i = 0; i < copy->n_monitors; i++)
		n += copy->monitors[i]->account == c->account;
	if (n >= CAP_QUERY_USER_MONITORS)
		return -EBUSY;
	more = realloc(copy->monitors, (copy->n_monitors + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	copy->monitors = more;
	more[copy->n_monitors++] = c;
	return 0;
}

void copy_drop_monitor(struct copy *copy, const struct conn *c)
{
	size_t i;

	for (i = copy->n_monitors; i-- > 0;)
		if (copy->monitors[i] == c)
			copy->monitors[i] = copy->monitors[--copy->n_monitors];
	copy_release(copy);
}

void copy_drop_conn(struct conn *c)
{
	size_t i;

	for (i = 0; i < c->n_copies; i++) {
		if (--c->copies[i]->readers)
			continue;
		c->copies[i]->idle_ns = clock_now_ns();
		copy_release(c->copies[i]);
	}
	c->n_copies = 0;
}

void copy_gone(struct entry *e)
{
	struct copy *copy = e->copy;
	struct conn *c;
	size_t i;

	for (c = copy->srv->conns; c && copy->readers; c = c->next)
		for (i = c->n_copies; i-- > 0;)
			if (c->copies[i] == copy) {
				c->copies[i] = c->copies[--c->n_copies];
				copy->readers--;
			}
	copy_free(copy);
}
