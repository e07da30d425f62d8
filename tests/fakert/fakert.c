/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake runtime: a process that looks like a .NET target from its diagnostic port.
 *
 * It answers like a real one, down to the habits that hurt: there is one server, so a request
 * that is half sent, or a StopTracing that waits for its stream to be read, holds up every
 * other client; a rundown arrives when its session is stopped and not before; a rejected
 * CollectTracing leaves its connection open on 9 and later. Streams are recorded ones, sent
 * as they are or moved to the present (--rebase). Beyond that it misbehaves on demand.
 *
 * Where a real runtime may die of a request, this one does: it prints "FATAL malformed
 * request" and aborts, and it is far stricter (see request.c), so a test that ends with a
 * living fakert has sent nothing doubtful.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/reader.h"
#include "tests/fakert/request.h"
#include "tests/fakert/stream.h"

#define MAX_SESSIONS 64u
#define MAX_CONNS    256u
#define MAX_MESSAGE  65535u
#define TICK_MS      10
/* A live stream waits this long for a rundown that tells where the present is (--rebase). */
#define ANCHOR_WAIT_NS     SEC_NS(2)

#define HR_UNKNOWN_COMMAND 0x80131385u
#define HR_FAIL            0x80004005u

static const char magic[14] = "DOTNET_IPC_V1";

/* What a request is about; --only takes these by name. */
enum scope {
	SCOPE_OTHER = 1,
	SCOPE_INFO = 2,
	SCOPE_LIVE = 4,
	SCOPE_RUNDOWN = 8,
	SCOPE_STOP = 16,
	SCOPE_ALL = 31,
};

enum stall {
	STALL_NONE,
	STALL_ACCEPT, /* connected, never read */
	STALL_REPLY,  /* read, never answered */
	STALL_HEADER, /* OK, then silence */
	STALL_STREAM, /* half of the stream, then silence */
};

enum junk {
	JUNK_NONE,
	JUNK_REPLY,  /* instead of the reply */
	JUNK_STREAM, /* instead of the stream */
};

static struct {
	unsigned int major;
	const char *version, *command_line, *assembly;
	uint8_t cookie[16];
	const char *rundown, *second, *live;
	uint64_t live_rate, drip, flood;
	bool rebase, suspended, raw_exit, flush_exit, maps_coreclr;
	enum stall stall;
	enum junk garbage, http;
	bool close_after_request;
	uint64_t close_after; /* bytes; UINT64_MAX = never */
	uint32_t error;
	unsigned int only;
	uint64_t times; /* misbehave this often, then no more */
	uint64_t exit_after_ms;
	FILE *log;
} opt = { .major = 10,
	  .version = "10.0.15",
	  .assembly = "fakert",
	  .close_after = UINT64_MAX,
	  .only = SCOPE_ALL,
	  .times = UINT64_MAX };

enum conn_state {
	CONN_REQUEST, /* being read */
	CONN_REPLY,   /* its last bytes are on the way */
	CONN_STOP,    /* waits for a session's end */
	CONN_STREAM,  /* carries a session */
	CONN_MUTE,    /* holds the server until the client goes */
	CONN_LEAKED,  /* forgotten by the server, open */
};

struct conn {
	int fd;
	enum conn_state state;
	uint8_t in[MAX_MESSAGE + 1];
	size_t in_len;
	struct buf out; /* goes before the stream */
	size_t out_at;
	uint64_t sent, opened_ns;

	/* a session (STREAM) or the one waited for (STOP) */
	uint64_t session_id;
	bool is_rundown, stopping;
	struct stream own; /* bytes when rebased */
	const struct stream *source, *stream;
	size_t at;
	size_t due; /* the objects before this are past (--rebase) */
	uint64_t start_ns, due_ns;
	/* misbehaviour of this connection */
	enum stall stall;
	uint64_t close_after;
	bool floods; /* filler instead of the stream's body */
	uint64_t flood_left;
	unsigned int n_filler;
};

static struct conn *conns[MAX_CONNS];
static size_t n_conns;
static uint64_t n_sessions, n_rundowns; /* ever */
static struct stream stream_nothing, stream_rundown, stream_second, stream_live;
/* How far recorded live times lie behind the present, once it is known. */
static int64_t live_shift_ns;
static bool live_anchored;
static volatile sig_atomic_t signalled;

static NORETURN PRINTF_LIKE(1, 2) void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("fakert: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(EXIT_FAILURE);
}

static NORETURN void fatal_request(uint16_t command, const char *why)
{
	printf("FATAL malformed request %04x: %s\n", command, why);
	fflush(stdout);
	abort();
}

/* -- Replies -------------------------------------------------------------------------- */

static void put_header(struct buf *out, size_t payload_size, uint8_t id)
{
	buf_append(out, magic, sizeof(magic));
	buf_put_u16(out, (uint16_t)(REQUEST_HEADER_SIZE + payload_size));
	buf_put_u8(out, 0xff);
	buf_put_u8(out, id);
	buf_put_u16(out, 0);
}

static void reply_error(struct conn *c, uint32_t hresult)
{
	put_header(&c->out, 4, 0xff);
	buf_put_u32(&c->out, hresult);
	c->state = CONN_REPLY;
}

static void reply_id(struct conn *c, uint64_t id)
{
	put_header(&c->out, 8, 0);
	buf_put_u64(&c->out, id);
	c->state = CONN_REPLY;
}

/*
 * UTF-8 of the command line (ours) to UTF-16. Three bytes that spell a surrogate become it,
 * so that a test can send half a pair.
 */
static void put_string(struct buf *out, const char *s)
{
	_cleanup_buf_ struct buf units;
	const uint8_t *p = (const uint8_t *)s;

	buf_init(&units, MAX_MESSAGE);
	while (*p) {
		unsigned int extra = *p < 0xc0 ? 0 : *p < 0xe0 ? 1 : *p < 0xf0 ? 2 : 3;
		uint32_t ch = extra ? *p & (0x3fu >> extra) : *p;

		for (p++; extra && (*p & 0xc0) == 0x80; extra--)
			ch = ch << 6 | (*p++ & 0x3f);
		if (ch >= 0x10000) {
			buf_put_u16(&units, (uint16_t)(0xd7c0 + (ch >> 10)));
			ch = 0xdc00 | (ch & 0x3ff);
		}
		buf_put_u16(&units, (uint16_t)ch);
	}
	buf_put_u16(&units, 0);
	if (units.error)
		die("string too long for a reply");
	if (units.len == 2) {
		buf_put_u32(out, 0);
		return;
	}
	buf_put_u32(out, (uint32_t)units.len / 2);
	buf_append(out, units.data, units.len);
}

static void reply_process_info(struct conn *c, uint16_t command)
{
	_cleanup_buf_ struct buf payload;

	buf_init(&payload, MAX_MESSAGE - REQUEST_HEADER_SIZE);
	if (command == REQUEST_PROCESS_INFO3)
		buf_put_u32(&payload, 1);
	buf_put_u64(&payload, (uint64_t)getpid());
	buf_append(&payload, opt.cookie, sizeof(opt.cookie));
	put_string(&payload, opt.command_line);
	put_string(&payload, "Linux");
#if defined(__aarch64__)
	put_string(&payload, "arm64");
#else
	put_string(&payload, "x64");
#endif
	if (command != REQUEST_PROCESS_INFO) {
		put_string(&payload, opt.assembly);
		put_string(&payload, opt.version);
	}
	if (command == REQUEST_PROCESS_INFO3)
		put_string(&payload, "linux-x64");
	if (payload.error) {
		reply_error(c, HR_FAIL);
		return;
	}
	put_header(&c->out, payload.len, 0);
	buf_append(&c->out, payload.data, payload.len);
	c->state = CONN_REPLY;
}

/* -- Sessions ------------------------------------------------------------------------- */

static struct conn *session_find(uint64_t id)
{
	size_t i;

	for (i = 0; i < n_conns; i++)
		if (conns[i]->state == CONN_STREAM && conns[i]->session_id == id)
			return conns[i];
	return NULL;
}

static size_t session_count(void)
{
	size_t i, n = 0;

	for (i = 0; i < n_conns; i++)
		n += conns[i]->state == CONN_STREAM;
	return n;
}

/* The connection's own copy of its source, shift_ns later. */
static void session_shift(struct conn *c, int64_t shift_ns)
{
	int r;

	stream_deinit(&c->own);
	r = stream_shift(&c->own, c->source, shift_ns);
	if (r < 0)
		die("cannot rebase the stream: %s", strerror(-r));
	c->stream = &c->own;
}

static void live_anchor(int64_t shift_ns)
{
	size_t i;

	if (live_anchored)
		return;
	live_anchored = true;
	live_shift_ns = shift_ns;
	for (i = 0; i < n_conns; i++)
		if (conns[i]->state == CONN_STREAM && conns[i]->source == &stream_live)
			session_shift(conns[i], shift_ns);
}

static const struct stream *session_source(bool is_rundown)
{
	if (!is_rundown)
		return opt.live ? &stream_live : &stream_nothing;
	n_rundowns++;
	if (n_rundowns > 1 && opt.second)
		return &stream_second;
	return opt.rundown ? &stream_rundown : &stream_nothing;
}

static void session_start(struct conn *c, bool is_rundown)
{
	c->session_id = 0x7f0000001000 + 0x100 * n_sessions++;
	reply_id(c, c->session_id);
	c->state = CONN_STREAM;
	c->is_rundown = is_rundown;
	c->start_ns = clock_now_ns();
	c->source = c->stream = session_source(is_rundown);
	if (opt.rebase || c->source == &stream_nothing)
		session_shift(c, live_anchored && !is_rundown ? live_shift_ns : 0);
}

/*
 * With --rebase a rundown begins now and takes as long as it did; the first one tells where
 * the recorded live stream lies in time, as the two were recorded by one clock.
 */
static void session_stop(struct conn *c)
{
	const struct stream *s = c->source;
	int64_t shift_ns;

	if (c->stopping)
		return;
	c->stopping = true;
	c->due_ns = clock_now_ns();
	shift_ns = (int64_t)(c->due_ns - s->first_ns);
	if (s == &stream_nothing) {
		session_shift(c, shift_ns);
	} else if (opt.rebase && c->is_rundown && s->first_ns) {
		session_shift(c, shift_ns);
		c->due_ns += s->last_ns - s->first_ns;
		live_anchor(shift_ns);
	}
}

/* What a rate allows since a point in time. */
static uint64_t paced(uint64_t rate, uint64_t since_ns, uint64_t now)
{
	return (now - since_ns) / 1000 * rate / 1000000;
}

/* How far the stream may be sent now. */
static size_t session_allowed(struct conn *c, uint64_t now)
{
	const struct stream *s = c->stream;
	size_t allowed = s->head;

	if (c->stall == STALL_HEADER || opt.suspended)
		return 0;
	if (c->floods)
		return allowed;
	if (c->stopping && now >= c->due_ns) {
		allowed = s->bytes.len;
	} else if (!c->is_rundown) {
		allowed = s->tail;
		if (opt.rebase && !live_anchored)
			allowed = s->head;
		else if (opt.rebase)
			allowed = c->due = stream_due(s, MAX(c->due, s->head), now);
		if (opt.live_rate)
			allowed = MIN(allowed, s->head + paced(opt.live_rate, c->start_ns, now));
	}
	if (c->stall == STALL_STREAM)
		allowed = MIN(allowed, s->bytes.len / 2);
	return allowed;
}

/* Has the session said all it will? A suspended runtime ends a session without a byte. */
static bool session_is_over(const struct conn *c)
{
	if (!c->stopping || c->out_at < c->out.len)
		return false;
	return opt.suspended ? !c->at : c->at == c->stream->bytes.len;
}

/* After the head of the stream: filler, and when the session is stopped its end. */
static void session_flood(struct conn *c)
{
	size_t offset = c->sent - (REQUEST_HEADER_SIZE + 8);

	buf_clear(&c->out);
	c->out_at = 0;
	if (c->stopping) {
		c->at = c->stream->bytes.len;
		stream_put_end(&c->out, offset);
	} else if (c->flood_left) {
		stream_put_filler(&c->out, offset, c->n_filler++);
		c->flood_left -= MIN(c->flood_left, c->out.len);
	}
}

/* -- Connections ---------------------------------------------------------------------- */

static void conn_free(struct conn *c)
{
	fd_close(c->fd);
	buf_deinit(&c->out);
	stream_deinit(&c->own);
	free(c);
}

/* Frees the i-th connection; those who wait for its session's end have it now. */
static void conn_close(size_t i)
{
	struct conn *c = conns[i];
	size_t j;

	conns[i] = conns[--n_conns];
	if (c->state == CONN_STREAM)
		for (j = 0; j < n_conns; j++)
			if (conns[j]->state == CONN_STOP && conns[j]->session_id == c->session_id)
				reply_id(conns[j], c->session_id);
	conn_free(c);
}

static void conn_junk(struct conn *c)
{
	if (opt.http != JUNK_NONE) {
		buf_puts(&c->out, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
	} else {
		buf_reserve(&c->out, 4096);
		c->out.len += (size_t)MAX(getrandom(c->out.data + c->out.len, 4096, 0), 0);
	}
	c->state = CONN_REPLY;
}

static enum scope request_scope(const struct request *q)
{
	switch (q->command) {
	case REQUEST_PROCESS_INFO:
	case REQUEST_PROCESS_INFO2:
	case REQUEST_PROCESS_INFO3: return SCOPE_INFO;
	case REQUEST_STOP_TRACING: return SCOPE_STOP;
	case REQUEST_RESUME: return SCOPE_OTHER;
	default: return q->rundown_keywords ? SCOPE_RUNDOWN : SCOPE_LIVE;
	}
}

static bool misbehave(enum scope scope)
{
	if (!(opt.only & scope) || !opt.times)
		return false;
	opt.times--;
	return true;
}

/* Returns true when nothing of the ordinary answer is left to do. */
static bool conn_misbehave(struct conn *c, enum scope scope)
{
	bool is_session = scope == SCOPE_LIVE || scope == SCOPE_RUNDOWN;

	if (opt.close_after_request) {
		c->state = CONN_REPLY; /* of no bytes */
		return true;
	}
	if (opt.stall == STALL_REPLY) {
		c->state = CONN_MUTE;
		return true;
	}
	if (opt.error) {
		reply_error(c, opt.error);
		if (is_session && opt.major >= 9)
			c->state = CONN_LEAKED;
		return true;
	}
	if (opt.garbage == JUNK_REPLY || opt.http == JUNK_REPLY) {
		conn_junk(c);
		return true;
	}
	if (is_session && (opt.garbage == JUNK_STREAM || opt.http == JUNK_STREAM)) {
		reply_id(c, 0x7f0000000000);
		conn_junk(c);
		return true;
	}
	c->stall = opt.stall;
	c->close_after = opt.close_after;
	c->floods = is_session && opt.flood;
	c->flood_left = opt.flood;
	return false;
}

static void conn_answer(struct conn *c, const struct request *q)
{
	enum scope scope = request_scope(q);
	struct conn *session;

	if (misbehave(scope) && conn_misbehave(c, scope))
		return;
	switch (q->command) {
	case REQUEST_PROCESS_INFO:
	case REQUEST_PROCESS_INFO2:
	case REQUEST_PROCESS_INFO3: reply_process_info(c, q->command); break;
	case REQUEST_RESUME:
		opt.suspended = false;
		put_header(&c->out, 4, 0);
		buf_put_u32(&c->out, 0);
		c->state = CONN_REPLY;
		break;
	case REQUEST_STOP_TRACING:
		session = session_find(q->session_id);
		if (session) {
			session_stop(session);
			c->session_id = q->session_id;
			c->state = CONN_STOP;
		} else {
			reply_id(c, q->session_id); /* real ones know no unknown id either */
		}
		break;
	default:
		if (session_count() < MAX_SESSIONS) {
			session_start(c, q->rundown_keywords != 0);
			break;
		}
		reply_error(c, HR_FAIL);
		if (opt.major >= 9)
			c->state = CONN_LEAKED;
	}
}

static void conn_log(uint16_t command, const uint8_t *payload, size_t n)
{
	size_t i;

	if (!opt.log)
		return;
	fprintf(opt.log, "%llu %04x ", (unsigned long long)clock_now_ns(), command);
	for (i = 0; i < n; i++)
		fprintf(opt.log, "%02x", payload[i]);
	fputs(n ? "\n" : "-\n", opt.log);
	fflush(opt.log);
}

/* Looks at what has come in; answers when the message is whole. */
static void conn_request(struct conn *c)
{
	struct request q;
	struct reader r;
	uint16_t size, command;
	const char *error;

	if (c->in_len < REQUEST_HEADER_SIZE)
		return;
	reader_init(&r, c->in, c->in_len);
	reader_skip(&r, sizeof(magic));
	size = reader_u16(&r);
	command = (uint16_t)(reader_u8(&r) << 8);
	command |= reader_u8(&r);
	if (memcmp(c->in, magic, sizeof(magic)))
		fatal_request(command, "magic");
	if (size < REQUEST_HEADER_SIZE)
		fatal_request(command, "size");
	if (c->in_len < size)
		return;
	conn_log(command, c->in + REQUEST_HEADER_SIZE, size - REQUEST_HEADER_SIZE);
	if (c->in_len > size)
		fatal_request(command, "bytes after the message");
	if (reader_u16(&r))
		fatal_request(command, "reserved field");
	if (!request_is_known(command, opt.major)) {
		reply_error(c, HR_UNKNOWN_COMMAND);
		return;
	}
	error = request_parse(command, c->in + REQUEST_HEADER_SIZE, size - REQUEST_HEADER_SIZE, &q);
	if (error)
		fatal_request(command, error);
	conn_answer(c, &q);
}

/* Returns false when the client is gone. */
static bool conn_read(struct conn *c)
{
	ssize_t n;

	if (c->state == CONN_MUTE && c->stall == STALL_ACCEPT)
		return true; /* its end shows as a hang-up */
	n = recv(c->fd, c->in + c->in_len, sizeof(c->in) - c->in_len, MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	if (!n && c->state == CONN_REQUEST && c->in_len)
		fatal_request(0, "message cut");
	if (!n)
		return false;
	c->in_len += (size_t)n;
	if (c->state != CONN_REQUEST)
		fatal_request(0, "bytes after the message");
	conn_request(c);
	/* 3.x does not wait for the rest of a message */
	return c->state != CONN_REQUEST || opt.major >= 5;
}

/* The next bytes to send and how many may go now; 0 for none. */
static size_t conn_pending(struct conn *c, uint64_t now, const uint8_t **bytesp)
{
	uint64_t budget = c->close_after;
	size_t n = 0;

	if (c->floods && c->state == CONN_STREAM && c->out_at == c->out.len &&
	    c->at == c->stream->head)
		session_flood(c);
	if (c->out_at < c->out.len) {
		*bytesp = c->out.data + c->out_at;
		n = c->out.len - c->out_at;
	} else if (c->state == CONN_STREAM) {
		size_t allowed = session_allowed(c, now);

		*bytesp = c->stream->bytes.data + c->at;
		n = allowed > c->at ? allowed - c->at : 0;
	}
	if (opt.drip)
		budget = MIN(budget, paced(opt.drip, c->opened_ns, now));
	return budget > c->sent ? (size_t)MIN(n, budget - c->sent) : 0;
}

/* Returns false when the connection is over. */
static bool conn_write(struct conn *c, uint64_t now)
{
	const uint8_t *bytes;
	ssize_t sent;
	size_t n;

	while ((n = conn_pending(c, now, &bytes))) {
		sent = send(c->fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (sent < 0)
			return errno == EAGAIN || errno == EINTR;
		c->sent += (uint64_t)sent;
		if (c->out_at < c->out.len)
			c->out_at += (size_t)sent;
		else
			c->at += (size_t)sent;
	}
	if (c->sent >= c->close_after)
		return false;
	if (c->state == CONN_REPLY)
		return c->out_at < c->out.len;
	return c->state != CONN_STREAM || !session_is_over(c);
}

/* One server: is it taken up by a connection? */
static bool server_is_busy(void)
{
	size_t i;

	for (i = 0; i < n_conns; i++)
		if (conns[i]->state != CONN_STREAM && conns[i]->state != CONN_LEAKED)
			return true;
	return n_conns == MAX_CONNS;
}

static void server_accept(int listen_fd)
{
	struct conn *c = calloc(1, sizeof(*c));

	if (!c)
		die("no memory");
	c->fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (c->fd < 0) {
		free(c);
		return;
	}
	buf_init(&c->out, MIB(1));
	c->opened_ns = clock_now_ns();
	c->close_after = UINT64_MAX;
	if (opt.stall == STALL_ACCEPT && misbehave(SCOPE_ALL)) {
		c->stall = STALL_ACCEPT;
		c->state = CONN_MUTE;
	}
	conns[n_conns++] = c;
}

/* -- The loop ------------------------------------------------------------------------- */

/* Is anything held back by time alone? */
static bool server_needs_tick(void)
{
	return opt.drip || opt.live_rate || opt.rebase;
}

static void server_round(int listen_fd, const sigset_t *sigmask, uint64_t until_ns)
{
	struct pollfd fds[MAX_CONNS + 1];
	uint64_t now = clock_now_ns(), wait_ns = UINT64_MAX;
	struct timespec timeout;
	size_t i, n = 0;
	const uint8_t *bytes;

	for (i = 0; i < n_conns; i++) {
		bool mute = conns[i]->state == CONN_MUTE;

		fds[n] = (struct pollfd){ conns[i]->fd, mute ? POLLRDHUP : POLLIN, 0 };
		if (conn_pending(conns[i], now, &bytes))
			fds[n].events |= POLLOUT;
		n++;
	}
	if (listen_fd >= 0 && !server_is_busy())
		fds[n++] = (struct pollfd){ listen_fd, POLLIN, 0 };
	if (server_needs_tick())
		wait_ns = MS_NS(TICK_MS);
	if (until_ns)
		wait_ns = MIN(wait_ns, until_ns > now ? until_ns - now : 0);
	timeout = (struct timespec){ (time_t)(wait_ns / SEC_NS(1)), (long)(wait_ns % SEC_NS(1)) };
	if (ppoll(fds, n, wait_ns == UINT64_MAX ? NULL : &timeout, sigmask) < 0)
		return;

	now = clock_now_ns();
	if (n > n_conns && fds[n_conns].revents)
		server_accept(listen_fd);
	if (opt.rebase && !live_anchored)
		for (i = 0; i < n_conns; i++)
			if (conns[i]->state == CONN_STREAM && conns[i]->source == &stream_live &&
			    (!opt.rundown || now - conns[i]->start_ns > ANCHOR_WAIT_NS)) {
				live_anchor((int64_t)(now - stream_live.last_ns));
				break;
			}
	/* from the end, as closing moves the last one into the gap */
	for (i = MIN(n, n_conns); i-- > 0;) {
		short events = fds[i].fd == conns[i]->fd ? fds[i].revents : 0;
		bool alive = !(events & (POLLRDHUP | POLLERR)) || events & POLLIN;

		if (alive && events & (POLLIN | POLLHUP))
			alive = conn_read(conns[i]);
		if (alive)
			alive = conn_write(conns[i], now);
		if (!alive)
			conn_close(i);
	}
}

/* An orderly exit ends every session as StopTracing would. */
static void server_flush(const sigset_t *sigmask)
{
	uint64_t until = clock_now_ns() + SEC_NS(5);
	size_t i;

	for (i = 0; i < n_conns; i++)
		if (conns[i]->state == CONN_STREAM)
			session_stop(conns[i]);
	while (session_count() && clock_now_ns() < until)
		server_round(-1, sigmask, until);
}

/* -- What it looks like from outside -------------------------------------------------- */

/* Field 22 of /proc/self/stat: the start time, which the socket's name holds. */
static unsigned long long start_time(void)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/self/stat", "re");
	unsigned long long start = 0;
	char line[4096];
	const char *p;
	int field;

	if (!f || !fgets(line, sizeof(line), f) || !(p = strrchr(line, ')')))
		return 0;
	for (field = 2; field < 22 && p; field++)
		p = strchr(p + 1, ' ');
	return p && sscanf(p, "%llu", &start) == 1 ? start : 0;
}

static const char *tmp_dir(void)
{
	const char *dir = getenv("TMPDIR");

	return dir && *dir ? dir : "/tmp";
}

static int server_listen(struct sockaddr_un *addr)
{
	const char *dir = tmp_dir();
	int fd, n;

	*addr = (struct sockaddr_un){ .sun_family = AF_UNIX };
	n = snprintf(addr->sun_path, sizeof(addr->sun_path), "%s%sdotnet-diagnostic-%d-%llu-socket",
		     dir, dir[strlen(dir) - 1] == '/' ? "" : "/", getpid(), start_time());
	if (n < 0 || (size_t)n >= sizeof(addr->sun_path))
		die("TMPDIR is too long for a socket");
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* the mode is set before the name exists */
	if (fd < 0 || fchmod(fd, 0600) < 0 ||
	    bind(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 || listen(fd, 255) < 0)
		die("%s: %s", addr->sun_path, strerror(errno));
	return fd;
}

/* A mapping that makes the process look like CoreCLR. Returns the file's directory. */
static char *map_coreclr(void)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	char *dir = NULL;
	size_t size = 4096;

	if (asprintf(&dir, "%s/fakert-XXXXXX", tmp_dir()) < 0 || !mkdtemp(dir) ||
	    asprintf(&path, "%s/libcoreclr.so", dir) < 0)
		die("cannot make libcoreclr.so: %s", strerror(errno));
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
	if (fd < 0 || ftruncate(fd, (off_t)size) < 0 ||
	    mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
		die("%s: %s", path, strerror(errno));
	return dir;
}

static void unmap_coreclr(const char *dir)
{
	_cleanup_free_ char *path = NULL;

	if (!dir || asprintf(&path, "%s/libcoreclr.so", dir) < 0)
		return;
	unlink(path);
	rmdir(dir);
}

/* -- Options -------------------------------------------------------------------------- */

static const char usage_text[] =
	"usage: fakert [options]\n"
	"  --version X.Y.Z         10.0.15; 3.1.x knows no ProcessInfo, and so on\n"
	"  --cookie HEX            32 digits; random\n"
	"  --command-line TEXT     our own\n"
	"  --assembly NAME         fakert\n"
	"  --rundown FILE          stream of sessions with rundown\n"
	"  --second-stream FILE    the same, from the second such session on\n"
	"  --live FILE             stream of sessions without rundown\n"
	"  --live-rate N           bytes of it a second\n"
	"  --rebase                recorded times become present ones\n"
	"  --log FILE              one line a request: time_ns command payload\n"
	"  --maps-coreclr          map a file named libcoreclr.so\n"
	"  --exit-after MS         instead of SIGTERM\n"
	"  --flush-exit            end the sessions properly on exit\n"
	"  --raw-exit              leave the socket's file behind\n"
	"  --suspended             as at start: sessions are accepted, no byte of them comes\n"
	"misbehaviour:\n"
	"  --stall accept|reply|header|stream\n"
	"  --close-after request|N N counts the bytes sent on a connection, the reply included\n"
	"  --error HRESULT\n"
	"  --garbage[=stream]      random bytes instead of the reply, or instead of the stream\n"
	"  --http[=stream]         the same with an HTTP reply\n"
	"  --drip N                bytes a second on every connection\n"
	"  --flood N[K|M|G]        so many bytes of meaningless blocks in each session\n"
	"  --only info|live|rundown|stop|other\n"
	"                          limits it to such requests; may be repeated\n"
	"  --times N               limits it to the first N\n";

static uint64_t parse_number(const char *text, int base)
{
	char *end;
	uint64_t v;

	errno = 0;
	v = strtoull(text, &end, base);
	if (errno || end == text)
		die("not a number: %s", text);
	switch (*end) {
	case 'K': v = KIB(v), end++; break;
	case 'M': v = MIB(v), end++; break;
	case 'G': v = GIB(v), end++; break;
	}
	if (*end)
		die("not a number: %s", text);
	return v;
}

static unsigned int parse_word(const char *text, const char *const *words, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (words[i] && !strcmp(text, words[i]))
			return (unsigned int)i;
	die("unknown word: %s", text);
}

static enum junk parse_junk(const char *text)
{
	static const char *const words[] = { [JUNK_REPLY] = "reply", [JUNK_STREAM] = "stream" };

	return text ? (enum junk)parse_word(text, words, ARRAY_SIZE(words)) : JUNK_REPLY;
}

static void parse_cookie(const char *text)
{
	size_t i;

	if (strlen(text) != 2 * sizeof(opt.cookie))
		die("a cookie has 32 hex digits");
	for (i = 0; i < sizeof(opt.cookie); i++)
		if (sscanf(text + 2 * i, "%2hhx", &opt.cookie[i]) != 1)
			die("a cookie has 32 hex digits");
}

static void parse_options(int argc, char **argv)
{
	static const char *const stalls[] = { NULL, "accept", "reply", "header", "stream" };
	static const char *const scopes[] = { "other", "info", "live", "rundown", "stop" };
	enum {
		VERSION,
		COOKIE,
		COMMAND_LINE,
		ASSEMBLY,
		RUNDOWN,
		SECOND,
		LIVE,
		LIVE_RATE,
		REBASE,
		LOG,
		MAPS,
		EXIT_AFTER,
		FLUSH_EXIT,
		RAW_EXIT,
		SUSPENDED,
		STALL,
		CLOSE_AFTER,
		ERROR,
		GARBAGE,
		HTTP,
		DRIP,
		FLOOD,
		ONLY,
		TIMES,
		HELP,
	};
	static const struct option options[] = {
		{ "version", 1, NULL, VERSION },
		{ "cookie", 1, NULL, COOKIE },
		{ "command-line", 1, NULL, COMMAND_LINE },
		{ "assembly", 1, NULL, ASSEMBLY },
		{ "rundown", 1, NULL, RUNDOWN },
		{ "second-stream", 1, NULL, SECOND },
		{ "live", 1, NULL, LIVE },
		{ "live-rate", 1, NULL, LIVE_RATE },
		{ "rebase", 0, NULL, REBASE },
		{ "log", 1, NULL, LOG },
		{ "maps-coreclr", 0, NULL, MAPS },
		{ "exit-after", 1, NULL, EXIT_AFTER },
		{ "flush-exit", 0, NULL, FLUSH_EXIT },
		{ "raw-exit", 0, NULL, RAW_EXIT },
		{ "suspended", 0, NULL, SUSPENDED },
		{ "stall", 1, NULL, STALL },
		{ "close-after", 1, NULL, CLOSE_AFTER },
		{ "error", 1, NULL, ERROR },
		{ "garbage", 2, NULL, GARBAGE },
		{ "http", 2, NULL, HTTP },
		{ "drip", 1, NULL, DRIP },
		{ "flood", 1, NULL, FLOOD },
		{ "only", 1, NULL, ONLY },
		{ "times", 1, NULL, TIMES },
		{ "help", 0, NULL, HELP },
		{ 0 },
	};
	unsigned int only = 0;
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case VERSION:
			opt.version = optarg;
			opt.major = (unsigned int)atoi(optarg);
			break;
		case COOKIE: parse_cookie(optarg); break;
		case COMMAND_LINE: opt.command_line = optarg; break;
		case ASSEMBLY: opt.assembly = optarg; break;
		case RUNDOWN: opt.rundown = optarg; break;
		case SECOND: opt.second = optarg; break;
		case LIVE: opt.live = optarg; break;
		case LIVE_RATE: opt.live_rate = parse_number(optarg, 10); break;
		case REBASE: opt.rebase = true; break;
		case LOG:
			opt.log = fopen(optarg, "ae");
			if (!opt.log)
				die("%s: %s", optarg, strerror(errno));
			break;
		case MAPS: opt.maps_coreclr = true; break;
		case EXIT_AFTER: opt.exit_after_ms = parse_number(optarg, 10); break;
		case FLUSH_EXIT: opt.flush_exit = true; break;
		case RAW_EXIT: opt.raw_exit = true; break;
		case SUSPENDED: opt.suspended = true; break;
		case STALL:
			opt.stall = (enum stall)parse_word(optarg, stalls, ARRAY_SIZE(stalls));
			break;
		case CLOSE_AFTER:
			opt.close_after_request = !strcmp(optarg, "request");
			if (!opt.close_after_request)
				opt.close_after = parse_number(optarg, 10);
			break;
		case ERROR: opt.error = (uint32_t)parse_number(optarg, 16); break;
		case GARBAGE: opt.garbage = parse_junk(optarg); break;
		case HTTP: opt.http = parse_junk(optarg); break;
		case DRIP: opt.drip = parse_number(optarg, 10); break;
		case FLOOD: opt.flood = parse_number(optarg, 10); break;
		case ONLY: only |= 1u << parse_word(optarg, scopes, ARRAY_SIZE(scopes)); break;
		case TIMES: opt.times = parse_number(optarg, 10); break;
		case HELP: fputs(usage_text, stdout); exit(EXIT_SUCCESS);
		default: fputs(usage_text, stderr); exit(EXIT_FAILURE);
		}
	}
	if (optind < argc)
		die("unexpected argument: %s", argv[optind]);
	if (only)
		opt.only = only;
}

/* Our own command line, as a runtime tells it: the arguments joined by blanks. */
static char *own_command_line(int argc, char **argv)
{
	struct buf text;
	int i;

	buf_init(&text, MIB(1));
	for (i = 0; i < argc; i++) {
		if (i)
			buf_putc(&text, ' ');
		buf_puts(&text, argv[i]);
	}
	if (!buf_cstr(&text))
		die("no memory");
	return (char *)text.data;
}

static void load(struct stream *s, const char *path)
{
	int r = path ? stream_load(s, path) : 0;

	if (r < 0)
		die("%s: %s", path, strerror(-r));
}

static void on_signal(int number UNUSED)
{
	signalled = 1;
}

int main(int argc, char **argv)
{
	_cleanup_free_ char *command_line = own_command_line(argc, argv);
	_cleanup_free_ char *coreclr = NULL;
	struct sigaction action = { .sa_handler = on_signal };
	struct sockaddr_un addr;
	sigset_t blocked, unblocked;
	uint64_t until = 0;
	int listen_fd;

	opt.command_line = command_line;
	if (getrandom(opt.cookie, sizeof(opt.cookie), 0) < 0)
		die("no random cookie");
	parse_options(argc, argv);
	load(&stream_rundown, opt.rundown);
	load(&stream_second, opt.second);
	load(&stream_live, opt.live);
	if (stream_empty(&stream_nothing) < 0)
		die("no memory");

	/* signals arrive in ppoll() only */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGINT);
	sigprocmask(SIG_BLOCK, &blocked, &unblocked);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);

	if (opt.maps_coreclr)
		coreclr = map_coreclr();
	listen_fd = server_listen(&addr);
	printf("ready %d\n", getpid());
	fflush(stdout);

	if (opt.exit_after_ms)
		until = clock_now_ns() + MS_NS(opt.exit_after_ms);
	while (!signalled && (!until || clock_now_ns() < until))
		server_round(listen_fd, &unblocked, until);
	if (opt.flush_exit)
		server_flush(&unblocked);

	close(listen_fd);
	if (!opt.raw_exit)
		unlink(addr.sun_path);
	unmap_coreclr(coreclr);
	while (n_conns)
		conn_close(n_conns - 1);
	stream_deinit(&stream_nothing);
	stream_deinit(&stream_rundown);
	stream_deinit(&stream_second);
	stream_deinit(&stream_live);
	if (opt.log)
		fclose(opt.log);
	return EXIT_SUCCESS;
}
