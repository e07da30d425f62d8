/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drain: attaches as clrsymd does and throws everything away.
 *
 * A live session first, then a rundown, which is stopped at once and read to its end. What
 * this takes is the part of an attach that belongs to the runtime and the kernel: the
 * reference of the benches. The streams can be saved, which makes it the recorder of the
 * tests too.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/caps.h"
#include "base/clock.h"
#include "diagipc/diagipc.h"

#define RECEIVE_TIMEOUT_S 60

static struct {
	uint64_t keywords, rundown_keywords;
	uint32_t buffer_mb;
	bool filter, rundown_only;
	double seconds;
	const char *save_rundown, *save_live;
} opt = { .keywords = 0x98, .rundown_keywords = 0x38, .buffer_mb = DEFAULT_BUFFER_MB };

/* A connection; its bytes behind the reply go to `save`, if anywhere. */
struct stream {
	int fd;
	FILE *save;
	uint64_t session_id, bytes;
	bool ended;
};

static struct sockaddr_un addr = { .sun_family = AF_UNIX };

static NORETURN PRINTF_LIKE(1, 2) void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("drain: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(EXIT_FAILURE);
}

static double ms_since(uint64_t start_ns)
{
	return (double)(clock_now_ns() - start_ns) / 1e6;
}

/* -- Asking --------------------------------------------------------------------------- */

/* The socket of this pid and start time, in our own temporary directory. */
static void find_socket(int pid)
{
	_cleanup_fclose_ FILE *f = NULL;
	const char *dir = getenv("TMPDIR"), *p = NULL;
	unsigned long long start;
	char line[4096];
	int field, n;

	snprintf(line, sizeof(line), "/proc/%d/stat", pid);
	f = fopen(line, "re");
	if (f && fgets(line, sizeof(line), f))
		p = strrchr(line, ')');
	for (field = 2; field < 22 && p; field++)
		p = strchr(p + 1, ' ');
	if (!p || sscanf(p, "%llu", &start) != 1)
		die("no process %d", pid);
	if (!dir || !*dir)
		dir = "/tmp";
	n = snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/dotnet-diagnostic-%d-%llu-socket",
		     dir, pid, start);
	if (n < 0 || (size_t)n >= sizeof(addr.sun_path))
		die("socket name too long");
}

static int connect_socket(void)
{
	struct timeval timeout = { .tv_sec = RECEIVE_TIMEOUT_S };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
	    connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0)
		die("%s: %s", addr.sun_path, strerror(errno));
	return fd;
}

/* Sends one command. Returns the connection. */
static int send_request(enum diagipc_command command, const union diagipc_args *args)
{
	_cleanup_buf_ struct buf out;
	int fd = connect_socket();

	buf_init(&out, CAP_IPC_MESSAGE);
	if (diagipc_request(&out, command, args) < 0)
		die("cannot build command %04x", command);
	if (send(fd, out.data, out.len, MSG_NOSIGNAL) != (ssize_t)out.len)
		die("send: %s", strerror(errno));
	return fd;
}

/* Reads the reply and whatever has come behind it. Returns 0 or DIAGIPC_E_REFUSED. */
static int receive_reply(int fd, struct buf *in, struct diagipc_reply *reply)
{
	ssize_t n;
	int r;

	while ((r = diagipc_reply_parse(in->data, in->len, reply)) == DIAGIPC_E_MORE) {
		if (buf_reserve(in, READ_CHUNK) < 0)
			die("no memory");
		n = recv(fd, in->data + in->len, READ_CHUNK, 0);
		if (n <= 0)
			die("no reply: %s", n ? strerror(errno) : "closed");
		in->len += (size_t)n;
	}
	if (r == DIAGIPC_E_MALFORMED)
		die("malformed reply");
	return r;
}

static struct diagipc_version ask_version(void)
{
	_cleanup_diagipc_process_info_ struct diagipc_process_info info = { 0 };
	_cleanup_close_ int fd = send_request(DIAGIPC_PROCESS_INFO2, NULL);
	_cleanup_buf_ struct buf in;
	struct diagipc_reply reply;

	buf_init(&in, MIB(1));
	if (receive_reply(fd, &in, &reply))
		return (struct diagipc_version){ 0 };
	if (diagipc_parse_process_info(&reply, DIAGIPC_PROCESS_INFO2, &info))
		die("malformed ProcessInfo2");
	return info.version;
}

/* -- Sessions ------------------------------------------------------------------------- */

static void stream_take(struct stream *s, const void *bytes, size_t n)
{
	s->bytes += n;
	if (s->save && fwrite(bytes, 1, n, s->save) != n)
		die("cannot save: %s", strerror(errno));
}

static void stream_open(struct stream *s, const struct diagipc_version *version,
			const struct diagipc_session *session, const char *save)
{
	enum diagipc_command command = diagipc_session_command(version);
	union diagipc_args args = { .session = *session };
	_cleanup_buf_ struct buf in;
	struct diagipc_reply reply;

	if (save && !(s->save = fopen(save, "we")))
		die("%s: %s", save, strerror(errno));
	buf_init(&in, MIB(1));
	for (;;) {
		s->fd = send_request(command, &args);
		if (!receive_reply(s->fd, &in, &reply))
			break;
		command = diagipc_session_fallback(command);
		if (reply.hresult != DIAGIPC_UNKNOWN_COMMAND || !command)
			die("session refused: %s", diagipc_hresult_text(reply.hresult));
		s->fd = fd_close(s->fd);
		buf_clear(&in);
	}
	if (diagipc_parse_session_id(&reply, &s->session_id))
		die("malformed session reply");
	stream_take(s, in.data + reply.size, in.len - reply.size);
}

static void stream_close(struct stream *s)
{
	s->fd = fd_close(s->fd);
	if (s->save && fclose(s->save))
		die("cannot save: %s", strerror(errno));
}

static void stream_read(struct stream *s)
{
	static uint8_t chunk[READ_CHUNK];
	ssize_t n = recv(s->fd, chunk, sizeof(chunk), MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0)
		die("recv: %s", strerror(errno));
	if (!n)
		s->ended = true;
	else
		stream_take(s, chunk, (size_t)n);
}

/* Reads what the streams have for so long, or until one of them has ended. */
static void drain_for(struct stream *streams, size_t n, int timeout_ms)
{
	uint64_t end = clock_now_ns() + MS_NS((uint64_t)timeout_ms);
	struct pollfd fds[2];
	size_t i, n_ended = 0;

	while (!n_ended && clock_now_ns() < end) {
		for (i = 0; i < n; i++)
			fds[i] = (struct pollfd){ streams[i].fd, POLLIN, 0 };
		if (poll(fds, n, 1 + (int)((end - clock_now_ns()) / 1000000)) < 0 && errno != EINTR)
			die("poll: %s", strerror(errno));
		for (i = 0; i < n; i++) {
			if (fds[i].revents)
				stream_read(&streams[i]);
			n_ended += streams[i].ended;
		}
	}
}

/* Stops the last of the n streams and reads all of them until its end and the reply. */
static void stop_last(struct stream *streams, size_t n)
{
	struct stream *s = &streams[n - 1];
	union diagipc_args args = { .session_id = s->session_id };
	_cleanup_close_ int fd = send_request(DIAGIPC_STOP_TRACING, &args);
	_cleanup_buf_ struct buf in;
	struct diagipc_reply reply;
	size_t i;

	drain_for(streams, n, RECEIVE_TIMEOUT_S * 1000);
	if (!s->ended)
		die(n > 1 && streams[0].ended ? "the target has gone" : "the stream does not end");
	buf_init(&in, MIB(1));
	if (receive_reply(fd, &in, &reply))
		die("StopTracing refused: %s", diagipc_hresult_text(reply.hresult));
	for (i = 0; i + 1 < n; i++)
		if (streams[i].ended)
			die("the target has gone");
}

/* -- The program ---------------------------------------------------------------------- */

static NORETURN void usage(void)
{
	fputs("usage: drain PID [options]\n"
	      "  --keywords HEX          of the live session (98)\n"
	      "  --rundown-keywords HEX  (38)\n"
	      "  --filter                method and loader events only (.NET 10 and later)\n"
	      "  --buffer-mb N           (64)\n"
	      "  --seconds N             keep the live session so long\n"
	      "  --save-live FILE\n"
	      "  --save-rundown FILE\n"
	      "  --rundown-only          no live session\n",
	      stderr);
	exit(EXIT_FAILURE);
}

static int parse_options(int argc, char **argv)
{
	static const struct option options[] = {
		{ "keywords", 1, NULL, 'k' },
		{ "rundown-keywords", 1, NULL, 'K' },
		{ "filter", 0, NULL, 'f' },
		{ "buffer-mb", 1, NULL, 'b' },
		{ "seconds", 1, NULL, 's' },
		{ "save-live", 1, NULL, 'l' },
		{ "save-rundown", 1, NULL, 'r' },
		{ "rundown-only", 0, NULL, 'R' },
		{ 0 },
	};
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 'k': opt.keywords = strtoull(optarg, NULL, 16); break;
		case 'K': opt.rundown_keywords = strtoull(optarg, NULL, 16); break;
		case 'f': opt.filter = true; break;
		case 'b': opt.buffer_mb = (uint32_t)strtoul(optarg, NULL, 10); break;
		case 's': opt.seconds = strtod(optarg, NULL); break;
		case 'l': opt.save_live = optarg; break;
		case 'r': opt.save_rundown = optarg; break;
		case 'R': opt.rundown_only = true; break;
		default: usage();
		}
	}
	if (optind + 1 != argc)
		usage();
	return atoi(argv[optind]);
}

int main(int argc, char **argv)
{
	static const uint32_t ids[] = { 141, 142, 143, 144, 151, 152, 153, 154, 155, 156, 157 };
	struct diagipc_provider live_provider = { .name = "Microsoft-Windows-DotNETRuntime",
						  .level = 5 };
	/* a provider that nobody has: the session is for its rundown alone */
	static const struct diagipc_provider nobody = { .name = "clrsym-drain" };
	struct diagipc_session live = { .providers = &live_provider, .n_providers = 1 };
	struct diagipc_session rundown = { .providers = &nobody, .n_providers = 1 };
	struct stream streams[2] = { { .fd = -1 }, { .fd = -1 } };
	struct stream *first = streams;
	struct diagipc_version version;
	size_t n = 2;
	double stop_ms, drained_ms;
	uint64_t start, stop;

	find_socket(parse_options(argc, argv));
	live_provider.keywords = opt.keywords;
	if (opt.filter) {
		live_provider.event_ids = ids;
		live_provider.n_event_ids = ARRAY_SIZE(ids);
	}
	live.buffer_mb = rundown.buffer_mb = opt.buffer_mb;
	rundown.rundown_keywords = opt.rundown_keywords;
	if (opt.rundown_only) {
		first = &streams[1];
		n = 1;
	}

	start = clock_now_ns();
	version = ask_version();
	if (!opt.rundown_only)
		stream_open(&streams[0], &version, &live, opt.save_live);
	stream_open(&streams[1], &version, &rundown, opt.save_rundown);
	stop = clock_now_ns();
	stop_last(first, n);
	stop_ms = ms_since(stop);
	drained_ms = ms_since(start);
	stream_close(&streams[1]);

	if (!opt.rundown_only) {
		drain_for(streams, 1, (int)(opt.seconds * 1000));
		if (streams[0].ended)
			die("the target has gone");
		stop_last(streams, 1);
		stream_close(&streams[0]);
	}
	printf("drained_ms %.1f bytes %llu stop_ms %.1f live_bytes %llu\n", drained_ms,
	       (unsigned long long)streams[1].bytes, stop_ms, (unsigned long long)streams[0].bytes);
	return EXIT_SUCCESS;
}
