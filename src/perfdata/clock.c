/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring perf's clocks: see clock.h.
 *
 * Three software events that never count anything are opened on the calling thread: the first
 * and the last stamped with CLOCK_MONOTONIC, the one in between with the clock in question. Then
 * the thread gives itself the name that it has: no one sees a change, but the kernel writes
 * a COMM record for each event, in their order or its reverse. The two outer times enclose the
 * moment of the inner one, so each round knows by itself how far it may be off; an interrupt in the
 * middle makes a wide round. The narrowest of several counts (measured: 0.1 to 0.3 us).
 *
 * The rings are far larger than the records of all rounds, so they never wrap.
 */
#include "perfdata/clock.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/clock.h"
#include "base/util.h"

#define CLOCK_EVENTS 3
#define CLOCK_INNER  1
#define CLOCK_ROUNDS 16u

struct clock_event {
	int fd;
	uint8_t *ring; /* one page of control, one of records */
	size_t page;
	uint64_t read; /* bytes of records looked at */
};

static void clock_event_close(struct clock_event *e)
{
	if (e->ring)
		munmap(e->ring, 2 * e->page);
	e->fd = fd_close(e->fd);
}

static void clock_events_close(struct clock_event (*events)[CLOCK_EVENTS])
{
	unsigned int i;

	for (i = 0; i < CLOCK_EVENTS; i++)
		clock_event_close(&(*events)[i]);
}

static int clock_error_of(int err)
{
	switch (err) {
	case EACCES:
	case EPERM: return PERFDATA_CLOCK_E_DENIED;
	case EINVAL: return PERFDATA_CLOCK_E_CLOCK;
	case ENOSYS:
	case ENOENT:
	case ENODEV:
	case EOPNOTSUPP: return PERFDATA_CLOCK_E_UNSUPPORTED;
	default: return -err;
	}
}

static int clock_event_open(struct clock_event *e, bool use_clockid, int32_t clockid)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_DUMMY,
		.sample_type = PERF_SAMPLE_TIME,
		.sample_id_all = 1,
		.comm = 1,
		.exclude_kernel = 1, /* all that a user is allowed */
		.exclude_hv = 1,
		.use_clockid = use_clockid,
		.clockid = use_clockid ? clockid : 0,
	};
	void *ring;

	e->fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (e->fd < 0)
		return clock_error_of(errno);
	ring = mmap(NULL, 2 * e->page, PROT_READ, MAP_SHARED, e->fd, 0);
	if (ring == MAP_FAILED)
		return errno == EPERM || errno == EAGAIN ? PERFDATA_CLOCK_E_MEMORY : -errno;
	e->ring = ring;
	return 0;
}

/* The time at the end of the newest record that has come since the last call; false: none. */
static bool clock_event_time(struct clock_event *e, uint64_t *timep)
{
	const struct perf_event_mmap_page *control = (const void *)e->ring;
	uint64_t head = __atomic_load_n(&control->data_head, __ATOMIC_ACQUIRE);
	const uint8_t *records = e->ring + e->page;
	bool found = false;

	while (head <= e->page && e->read + sizeof(struct perf_event_header) <= head) {
		struct perf_event_header header;

		memcpy(&header, records + e->read, sizeof(header));
		if (header.size < sizeof(header) + sizeof(*timep) || header.size > head - e->read)
			return false;
		e->read += header.size;
		if (header.type != PERF_RECORD_COMM)
			continue;
		memcpy(timep, records + e->read - sizeof(*timep), sizeof(*timep));
		found = true;
	}
	return found;
}

/* One round; false when a record is missing, or the outer times do not enclose anything. */
static bool clock_round(struct clock_event *events, const char *name,
			struct perfdata_clock_pair *pair)
{
	uint64_t time[CLOCK_EVENTS], first, last;
	unsigned int i;

	if (prctl(PR_SET_NAME, name, 0, 0, 0) < 0)
		return false;
	for (i = 0; i < CLOCK_EVENTS; i++)
		if (!clock_event_time(&events[i], &time[i]))
			return false;
	first = MIN(time[0], time[CLOCK_EVENTS - 1]);
	last = MAX(time[0], time[CLOCK_EVENTS - 1]);
	*pair = (struct perfdata_clock_pair){
		.mono_ns = first + (last - first) / 2,
		.clock_ns = time[CLOCK_INNER],
		.error_ns = (last - first + 1) / 2,
	};
	return true;
}

int perfdata_clock_measure(bool use_clockid, int32_t clockid, struct perfdata_clock_pair *pairp)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	_cleanup_(clock_events_close) struct clock_event events[CLOCK_EVENTS] = {
		{ .fd = -1, .page = page },
		{ .fd = -1, .page = page },
		{ .fd = -1, .page = page },
	};
	struct perfdata_clock_pair pair, best = { .error_ns = UINT64_MAX };
	char name[16] = "";
	unsigned int i;
	int r;

	if (use_clockid && clockid == CLOCK_MONOTONIC) {
		pair.mono_ns = clock_now_ns();
		*pairp = (struct perfdata_clock_pair){ pair.mono_ns, pair.mono_ns, 0 };
		return 0;
	}
	for (i = 0; i < CLOCK_EVENTS; i++) {
		if (i == CLOCK_INNER)
			r = clock_event_open(&events[i], use_clockid, clockid);
		else
			r = clock_event_open(&events[i], true, CLOCK_MONOTONIC);
		if (r)
			return r;
	}
	if (prctl(PR_GET_NAME, name, 0, 0, 0) < 0)
		return -errno;
	for (i = 0; i < CLOCK_ROUNDS; i++)
		if (clock_round(events, name, &pair) && pair.error_ns < best.error_ns)
			best = pair;
	if (best.error_ns == UINT64_MAX)
		return PERFDATA_CLOCK_E_NOTHING;
	*pairp = best;
	return 0;
}

const char *perfdata_clock_error_text(int error)
{
	switch ((enum perfdata_clock_error)error) {
	case PERFDATA_CLOCK_E_DENIED:
		return "the kernel does not let us use perf events, so perf's clock cannot be "
		       "measured; run as root, lower kernel.perf_event_paranoid to 2, or record "
		       "with -k mono";
	case PERFDATA_CLOCK_E_UNSUPPORTED:
		return "this kernel has no perf events, so perf's clock cannot be measured; record "
		       "with -k mono";
	case PERFDATA_CLOCK_E_CLOCK:
		return "the recording's clock is none that this kernel knows; record with -k mono";
	case PERFDATA_CLOCK_E_MEMORY:
		return "no locked memory left to measure perf's clock with; raise ulimit -l or "
		       "kernel.perf_event_mlock_kb, or record with -k mono";
	case PERFDATA_CLOCK_E_NOTHING:
		return "the kernel wrote no event to measure perf's clock with; record with "
		       "-k mono";
	}
	return error < 0 ? strerror(-error) : "unknown error";
}

/* -- The track ---------------------------------------------------------------------------- */

static void track_thin(struct perfdata_clock_track *track)
{
	uint32_t from, to = 1;

	/* the first stays, and the last, which has an odd index */
	for (from = 3; from < track->n; from += 2)
		track->pairs[to++] = track->pairs[from];
	track->n = to;
}

bool perfdata_clock_track_add(struct perfdata_clock_track *track,
			      const struct perfdata_clock_pair *pair)
{
	const struct perfdata_clock_pair *last = track->n ? &track->pairs[track->n - 1] : NULL;

	if (last && (pair->mono_ns <= last->mono_ns || pair->clock_ns <= last->clock_ns))
		return false;
	if (track->n == PERFDATA_CLOCK_PAIRS)
		track_thin(track);
	track->pairs[track->n++] = *pair;
	return true;
}

static uint64_t side(const struct perfdata_clock_pair *pair, bool mono)
{
	return mono ? pair->mono_ns : pair->clock_ns;
}

/* time + (to - from), within what 64 bits hold. */
static uint64_t shifted(uint64_t time, uint64_t from, uint64_t to)
{
	if (to >= from)
		return time > UINT64_MAX - (to - from) ? UINT64_MAX : time + (to - from);
	return time < from - to ? 0 : time - (from - to);
}

static uint64_t track_convert(const struct perfdata_clock_track *track, uint64_t time, bool to_mono)
{
	const struct perfdata_clock_pair *a, *b;
	uint32_t low = 0, high = track->n;

	if (!track->n)
		return time;
	/* the first pair later than time */
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (side(&track->pairs[mid], !to_mono) <= time)
			low = mid + 1;
		else
			high = mid;
	}
	a = &track->pairs[low ? low - 1 : 0];
	b = &track->pairs[low];
	if (!low || low == track->n)
		return shifted(time, side(a, !to_mono), side(a, to_mono));
	return side(a, to_mono) + (uint64_t)((__uint128_t)(time - side(a, !to_mono)) *
					     (side(b, to_mono) - side(a, to_mono)) /
					     (side(b, !to_mono) - side(a, !to_mono)));
}

uint64_t perfdata_clock_to_mono(const struct perfdata_clock_track *track, uint64_t clock_ns)
{
	return track_convert(track, clock_ns, true);
}

uint64_t perfdata_clock_from_mono(const struct perfdata_clock_track *track, uint64_t mono_ns)
{
	return track_convert(track, mono_ns, false);
}
