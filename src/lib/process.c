/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process of libclrsym: the daemon's shared memory, and lookups in it.
 *
 * Concept: the daemon hands out generations, each a piece of memory of its own. The newest hangs
 * on one pointer, the older ones behind it. A lookup loads the pointer once and needs nothing
 * else, so lookups take no lock and never wait; to put a new generation in front is one store.
 * Generations stay mapped until the process is closed, as nobody can say when the last lookup has
 * left one. There are few: each is larger than the one before, or comes with a restarted daemon.
 *
 * An older generation is asked, too, where the newest knows nothing, but only for times up to
 * which it is final: a daemon that was restarted cannot know of code that went before.
 *
 * When to ask for a new one: the daemon says that it was replaced; or the connection is
 * another than that over which it came; or it stands still, and a look at the connection shows that
 * the daemon has gone; or the process has ended; or it was attached for us and would not be much
 * longer without being asked about. All but the first at most once a second, so that a reader with
 * nothing to gain does not bother the daemon.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "base/clock.h"
#include "lib/lib.h"
#include "names/names.h"
#include "query/symbols.h"

#define ASK_AGAIN_NS SEC_NS(1)
/* A daemon that lives publishes more often, and its answers are some 250 ms behind. */
#define STANDS_STILL_NS SEC_NS(2)
/* Far more than a daemon makes of one process; each is address space. */
#define CAP_GENERATIONS 64u
/* A name may be taken away while it is copied; who meets that so often asks the daemon. */
#define LOOKUP_TRIES    4u
#define TIER_FLAGS      0x3ffu

#define DEFAULT_HOLD_S  60u
#define DEFAULT_WAIT_MS 10000u

struct generation {
	struct snapshot *snapshot;
	struct generation *older;
	ino_t inode; /* of the memfd: unique among those that are mapped */
};

static void generation_free(struct generation *g)
{
	if (g->snapshot)
		snapshot_free(g->snapshot);
	free(g);
}
DEFINE_CLEANUP(struct generation *, generation_free)

static struct generation *newest(const struct clrsym_process *p)
{
	return atomic_load_explicit(&p->newest, memory_order_acquire);
}

/* -- Lookup ----------------------------------------------------------------------------- */

static int fill(const struct snapshot *s, const struct snapshot_found *found, uint64_t addr,
		uint64_t looked_up, struct clrsym_symbol *sym)
{
	const struct range *range = &found->range;
	const char *tier = names_tier(range->flags & TIER_FLAGS);
	uint32_t il;
	int r;

	if (sym->name_size || sym->module_size) {
		r = snapshot_name(s, found, sym->name_size ? sym->name : NULL, sym->name_size,
				  &sym->short_len, sym->module_size ? sym->module : NULL,
				  sym->module_size);
		if (r == SNAPSHOT_E_NONE)
			return r;
		sym->truncated = r == SNAPSHOT_E_NO_SPACE;
	}
	sym->start = range->start;
	sym->size = range->size;
	sym->offset = addr - range->start;
	if (snapshot_il(s, found, (uint32_t)(looked_up - range->start), &il) == 0)
		sym->il_offset = il;
	sym->load_ns = range->flags & RANGE_FLAG_OPEN_PAST ? 0 : range->load;
	sym->unload_ns = range->unload;
	sym->method_id = range_method_id(range);
	sym->version = range_version(range);
	memcpy(sym->tier, tier, strnlen(tier, sizeof(sym->tier) - 1));
	sym->reason = CLRSYM_NAMED;
	return 0;
}

static int generation_lookup(const struct generation *g, uint64_t addr, uint64_t time,
			     uint32_t flags, struct clrsym_symbol *sym)
{
	uint64_t looked_up = lib_lookup_address(addr, flags);
	struct snapshot_found found;
	unsigned int tries;
	bool final;
	int r;

	for (tries = 0; tries < LOOKUP_TRIES; tries++) {
		r = snapshot_lookup(g->snapshot, looked_up, time, &found, &final);
		if (r != 0)
			return r;
		r = fill(g->snapshot, &found, addr, looked_up, sym);
		sym->final = final;
		if (r == 0)
			return 0;
	}
	return SNAPSHOT_E_NONE;
}

int process_lookup(const struct clrsym_process *p, uint64_t addr, uint64_t time, uint32_t flags,
		   struct clrsym_symbol *sym)
{
	const struct generation *g = newest(p);

	symbol_clear(sym);
	if (generation_lookup(g, addr, time, flags, sym) == 0)
		return 0;
	while (time && (g = g->older))
		if (time <= snapshot_known_until(g->snapshot) &&
		    generation_lookup(g, addr, time, flags, sym) == 0)
			return 0;
	symbol_clear(sym);
	return -ENOENT;
}

int clrsym_lookup(const struct clrsym_process *p, uint64_t addr, uint64_t time, uint32_t flags,
		  struct clrsym_symbol *sym)
{
	if (!p || !symbol_is_valid(sym) || flags & ~CLRSYM_CALLER)
		return -EINVAL;
	return process_lookup(p, addr, time, flags, sym);
}

/* -- Generations ------------------------------------------------------------------------ */

json_t *process_parameters(const struct clrsym_process *p)
{
	json_t *parameters = json_pack("{s:i}", "pid", (int)p->pid);

	/* no start time has 63 bits: ticks since boot */
	if (parameters && p->start &&
	    json_object_set_new(parameters, "start", json_integer((json_int_t)p->start)) < 0) {
		json_decref(parameters);
		return NULL;
	}
	return parameters;
}

/* Maps what came; the fd stays the caller's. -EPROTO: it is no snapshot, or of another process. */
static int generation_new(struct clrsym_process *p, int fd, struct generation **gp)
{
	_cleanup_(generation_freep) struct generation *g = calloc(1, sizeof(*g));
	struct snapshot_identity identity;
	struct stat st;
	int r;

	if (!g)
		return -ENOMEM;
	if (fstat(fd, &st) < 0)
		return -errno;
	r = snapshot_open(&g->snapshot, fd);
	if (r < 0)
		return r;
	if (r > 0)
		return lib_distrust(p->c);
	snapshot_get_identity(g->snapshot, &identity);
	if (!identity.start || (p->start && identity.start != p->start))
		return lib_distrust(p->c);
	p->start = identity.start;
	g->inode = st.st_ino;
	*gp = TAKE_PTR(g);
	return 0;
}

/* Returns 1 when a new generation is in front, 0 when the daemon gave the one that is there. */
static int ask_snapshot(struct clrsym_process *p)
{
	struct generation *front = newest(p), *g = NULL;
	_cleanup_json_ json_t *reply = NULL;
	_cleanup_close_ int fd = -1;
	struct stat st;
	int r;

	r = lib_call(p->c, QUERY_INTERFACE ".Snapshot", process_parameters(p), &reply, &fd);
	if (r < 0)
		return r;
	if (fd < 0)
		return lib_distrust(p->c);
	process_used(p, clock_now_ns());
	p->epoch = p->c->epoch;
	if (front && fstat(fd, &st) == 0 && st.st_ino == front->inode)
		return 0;
	if (p->n_generations == CAP_GENERATIONS)
		return -ENOBUFS;
	r = generation_new(p, fd, &g);
	if (r < 0)
		return r;
	g->older = front;
	p->n_generations++;
	atomic_store_explicit(&p->newest, g, memory_order_release);
	return 1;
}

/* The process that was attached to must be the one that is wanted. */
static int ask_attach(struct clrsym_process *p)
{
	_cleanup_(query_client_freep) struct query_client *client = NULL;
	_cleanup_json_ json_t *reply = NULL;
	json_t *parameters;
	uint64_t start;
	int r;

	parameters = json_pack("{s:i, s:I, s:I}", "pid", (int)p->pid, "hold_s",
			       (json_int_t)p->hold_s, "wait_ms", (json_int_t)p->wait_ms);
	if (!parameters)
		return -ENOMEM;
	r = lib_connect_new(p->c, p->wait_ms, &client);
	if (r < 0) {
		json_decref(parameters);
		return lib_result(p->c, NULL, r, NULL);
	}
	r = query_client_call(client, QUERY_INTERFACE ".Attach", parameters, &reply, NULL);
	r = lib_result(p->c, client, r, reply);
	if (r < 0)
		return r;
	start = (uint64_t)json_integer_value(
		json_object_get(json_object_get(reply, "process"), "start"));
	if (!start)
		return -EPROTO;
	if (p->start && p->start != start)
		return -ESRCH;
	p->start = start;
	return 0;
}

static int ask(struct clrsym_process *p)
{
	int r = ask_snapshot(p);

	if (r != -ENOTCONN || !(p->flags & CLRSYM_PROCESS_ATTACH))
		return r;
	r = ask_attach(p);
	return r < 0 ? r : ask_snapshot(p);
}

static bool stands_still(const struct snapshot *s, uint64_t now)
{
	return snapshot_known_until(s) + STANDS_STILL_NS < now;
}

void process_used(struct clrsym_process *p, uint64_t now)
{
	atomic_store_explicit(&p->used_ns, now, memory_order_relaxed);
}

/* Would the daemon soon let go of what it attached to for us? */
static bool is_unused(const struct clrsym_process *p, uint64_t now)
{
	uint64_t used = atomic_load_explicit(&p->used_ns, memory_order_relaxed);

	return p->flags & CLRSYM_PROCESS_ATTACH && now - used > SEC_NS(p->hold_s) / 2;
}

static bool is_held_off(const struct clrsym_process *p, uint64_t now)
{
	return now < atomic_load_explicit(&p->ask_after_ns, memory_order_relaxed);
}

/* Is there nothing to ask, as far as one can see without the lock? */
static bool is_settled(const struct clrsym_process *p, uint64_t now)
{
	const struct snapshot *s = newest(p)->snapshot;

	if (snapshot_is_replaced(s))
		return false;
	if (is_held_off(p, now))
		return true;
	return !snapshot_has_ended(s) && !stands_still(s, now) && !is_unused(p, now);
}

int process_refresh(struct clrsym_process *p)
{
	const struct snapshot *s = newest(p)->snapshot;
	uint64_t now = clock_now_ns();
	bool is_wanted;
	int r = 0;

	if (is_settled(p, now) && (is_held_off(p, now) || p->epoch == p->c->epoch))
		return 0;
	if (stands_still(s, now)) {
		r = lib_connect(p->c);
		if (r < 0)
			return r;
	}
	is_wanted = snapshot_is_replaced(s) || snapshot_has_ended(s) || is_unused(p, now) ||
		    p->epoch != p->c->epoch;
	if (is_wanted)
		r = ask(p);
	if (r <= 0)
		atomic_store_explicit(&p->ask_after_ns, now + ASK_AGAIN_NS, memory_order_relaxed);
	return r;
}

int clrsym_process_refresh(struct clrsym_process *p)
{
	_cleanup_unlock_ pthread_mutex_t *lock = NULL;

	if (!p)
		return -EINVAL;
	if (is_settled(p, clock_now_ns()))
		return 0;
	if (lib_is_forked(p->c))
		return -ECHILD;
	lock = &p->c->lock;
	pthread_mutex_lock(lock);
	return process_refresh(p);
}

/* -- Public ----------------------------------------------------------------------------- */

/* Options of a valid struct, or the defaults. */
static int set_options(struct clrsym_process *p, const struct clrsym_process_opts *opts)
{
	int r = lib_check_opts(opts, sizeof(*opts), sizeof(*opts));

	p->hold_s = DEFAULT_HOLD_S;
	p->wait_ms = DEFAULT_WAIT_MS;
	if (r < 0 || !opts)
		return r;
	if (opts->flags & ~CLRSYM_PROCESS_ATTACH)
		return -E2BIG;
	p->flags = opts->flags;
	if (opts->hold_s)
		p->hold_s = opts->hold_s;
	if (opts->wait_ms)
		p->wait_ms = MIN(opts->wait_ms, CAP_QUERY_ATTACH_WAIT_MS);
	return 0;
}

int clrsym_process_open(struct clrsym *c, pid_t pid, uint64_t start,
			const struct clrsym_process_opts *opts, struct clrsym_process **processp)
{
	struct clrsym_process *p;
	int r;

	if (!c || pid <= 0 || start > INT64_MAX || !processp)
		return -EINVAL;
	if (lib_is_forked(c))
		return -ECHILD;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->c = c;
	p->pid = pid;
	p->start = start;
	r = set_options(p, opts);
	if (r == 0) {
		pthread_mutex_lock(&c->lock);
		r = ask(p);
		pthread_mutex_unlock(&c->lock);
	}
	if (r < 0) {
		clrsym_process_close(p);
		return r;
	}
	*processp = p;
	return 0;
}

void clrsym_process_close(struct clrsym_process *p)
{
	struct generation *g, *older;

	if (!p)
		return;
	for (g = newest(p); g; g = older) {
		older = g->older;
		generation_free(g);
	}
	free(p);
}

uint64_t clrsym_process_start_time(const struct clrsym_process *p)
{
	return p ? p->start : 0;
}

uint64_t clrsym_known_until(const struct clrsym_process *p)
{
	return p ? snapshot_known_until(newest(p)->snapshot) : 0;
}

bool clrsym_process_has_ended(const struct clrsym_process *p)
{
	return p && snapshot_has_ended(newest(p)->snapshot);
}
