/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking the daemon. Sessions on a process cost it something, and the daemon's know more than ones
 * that begin now: so it is asked first, and only where none answers does a subcommand attach by
 * itself. A daemon that is there but will not or cannot answer is an error and not a reason to go
 * around it: it may have sessions on that very process.
 *
 * A socket that does not exist, or that nobody listens on, is no daemon. A user's own daemon comes
 * before the system's.
 */
#include "cli/daemon.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/caps.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/utf.h"

#define DAEMON_TIMEOUT_MS (CAP_QUERY_ATTACH_WAIT_MS + 10000u)

/* -- the connection ----------------------------------------------------------------------- */

bool daemon_option_take(struct daemon_options *opts, int option, const char *arg)
{
	switch (option) {
	case DAEMON_OPT_SOCKET: opts->socket = arg; return true;
	case DAEMON_OPT_NEVER: opts->never = true; return true;
	default: return false;
	}
}

/* 0 with *outp NULL: no daemon there. */
static int try_open(const struct daemon_options *opts, const char *path, struct query_client **outp)
{
	uint32_t timeout_ms = opts->timeout_ms ? opts->timeout_ms : DAEMON_TIMEOUT_MS;
	int r = query_client_open(outp, path, timeout_ms);

	if (r == 0)
		return 0;
	*outp = NULL;
	if (r == -ENOENT || r == -ENOTDIR || r == -ECONNREFUSED)
		return 0;
	log_error("%s: %s", escape_terminal(path, strlen(path)), daemon_error_text(NULL, r));
	return r;
}

int daemon_open(const struct daemon_options *opts, struct query_client **outp)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	_cleanup_free_ char *own = NULL;
	int r = 0;

	*outp = NULL;
	if (opts->never)
		return 0;
	if (opts->socket) {
		r = try_open(opts, opts->socket, outp);
		/* named, so it is worth a word */
		if (r == 0 && !*outp)
			log_warn("%s: no clrsymd answers there",
				 escape_terminal(opts->socket, strlen(opts->socket)));
		return r;
	}
	if (geteuid() != 0 && runtime && *runtime == '/') {
		if (asprintf(&own, "%s/clrsym/query.sock", runtime) < 0) {
			own = NULL;
			return -ENOMEM;
		}
		r = try_open(opts, own, outp);
	}
	return r || *outp ? r : try_open(opts, QUERY_DEFAULT_SOCKET, outp);
}

bool daemon_is_gone(const struct query_client *c)
{
	struct pollfd fd = { .fd = query_client_fd(c), .events = POLLRDHUP };

	return poll(&fd, 1, 0) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

bool daemon_denies(const struct query_client *c, int r)
{
	return r == QUERY_E_REMOTE && strcmp(query_client_error(c), QUERY_ERROR_DENIED) == 0;
}

/* Errors that are told in other words than the daemon's. */
static const struct {
	const char *error, *words;
} errors[] = {
	{ QUERY_ERROR_NO_PROCESS, "no such process" },
	{ QUERY_ERROR_NOT_ATTACHED, "clrsymd is not attached to it any more; ask again" },
	{ QUERY_ERROR_DENIED, "it is another user's: ask as that user, as root, or as a member of "
			      "clrsym-admin" },
	{ QUERY_ERROR_FOREIGN_PID,
	  "clrsymd does not know that number here; use the one outside of the container" },
};

static const char *remote_text(struct query_client *c)
{
	static const char locked[] = "keeps its map already";
	const char *error = query_client_error(c), *text = query_client_error_text(c);
	static char more[512];
	size_t i, n = strlen(error);

	for (i = 0; i < ARRAY_SIZE(errors); i++)
		if (strcmp(error, errors[i].error) == 0)
			return errors[i].words;
	/* with a reason: the reason alone is for people */
	if (strncmp(text, error, n) == 0 && strncmp(text + n, ": ", 2) == 0)
		text += n + 2;
	n = strlen(text);
	if (strcmp(error, QUERY_ERROR_CANNOT_ATTACH) != 0 || n < strlen(locked) ||
	    strcmp(text + n - strlen(locked), locked) != 0)
		return text;
	/* what to do is the asking side's to say: there may be another socket */
	snprintf(more, sizeof(more), "%s (ask that one: --socket PATH)", text);
	return more;
}

const char *daemon_error_text(struct query_client *c, int r)
{
	switch (r) {
	case QUERY_E_REMOTE: return remote_text(c);
	case -EACCES:
	case -EPERM:
		return "you are not in group clrsym, whose members may ask clrsymd about their "
		       "own processes (usermod -aG clrsym USER, or --no-daemon to attach beside "
		       "it)";
	case -ECONNRESET:
	case -EPIPE: return "clrsymd has gone";
	case -ETIMEDOUT: return "clrsymd does not answer in time";
	case -EPROTO: return "what clrsymd answers makes no sense";
	default: return strerror(-r);
	}
}

/* -- calls ---------------------------------------------------------------------------------- */

static bool take_u64(json_t *object, const char *name, uint64_t *vp)
{
	json_t *value = json_object_get(object, name);

	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*vp = (uint64_t)json_integer_value(value);
	return true;
}

/* "" if there is none; too long a text is cut. */
static void take_text(json_t *object, const char *name, char *text, size_t size)
{
	const char *value = json_string_value(json_object_get(object, name));
	size_t n = value ? utf8_cut(value, strlen(value), size - 1) : 0;

	if (n)
		memcpy(text, value, n);
	text[n] = '\0';
}

static bool take_process(json_t *object, struct daemon_process *process)
{
	const char *state = json_string_value(json_object_get(object, "state"));
	uint64_t pid;

	if (!state || !take_u64(object, "pid", &pid) || pid > INT32_MAX ||
	    !take_u64(object, "start", &process->start) ||
	    !take_u64(object, "known_until", &process->known_until))
		return false;
	process->pid = (pid_t)pid;
	process->ended = strcmp(state, "ended") == 0;
	process->known =
		json_is_true(json_object_get(object, "complete")) || strcmp(state, "live") == 0;
	process->stuck = !process->known && strcmp(state, "waiting") == 0;
	take_text(object, "comm", process->comm, sizeof(process->comm));
	take_text(object, "runtime", process->runtime, sizeof(process->runtime));
	return true;
}

static int compare_processes(const void *ap, const void *bp)
{
	const struct daemon_process *a = ap, *b = bp;

	return a->start > b->start ? -1 : a->start < b->start;
}

int daemon_list(struct query_client *c, struct daemon_process **itemsp, size_t *np)
{
	_cleanup_free_ struct daemon_process *items = NULL;
	json_t *reply = NULL, *list;
	size_t i, n_list, n = 0;
	int r;

	r = query_client_call(c, QUERY_INTERFACE ".ListProcesses", NULL, &reply, NULL);
	if (r) {
		json_decref(reply);
		return daemon_denies(c, r) ? -EACCES : r;
	}
	list = json_object_get(reply, "processes");
	n_list = json_array_size(list);
	items = calloc(n_list + 1, sizeof(*items));
	if (!items)
		r = -ENOMEM;
	else if (!json_is_array(list))
		r = -EPROTO;
	for (i = 0; i < n_list && r == 0; i++)
		n += take_process(json_array_get(list, i), &items[n]);
	json_decref(reply);
	if (r)
		return r;
	qsort(items, n, sizeof(*items), compare_processes);
	*itemsp = TAKE_PTR(items);
	*np = n;
	return 0;
}

int daemon_attach(struct query_client *c, pid_t pid, uint32_t hold_s, uint32_t wait_ms,
		  struct daemon_process *process)
{
	json_t *reply = NULL, *params;
	int r;

	params = json_pack("{s:i, s:I, s:I}", "pid", (int)pid, "hold_s", (json_int_t)hold_s,
			   "wait_ms", (json_int_t)wait_ms);
	if (!params)
		return -ENOMEM;
	r = query_client_call(c, QUERY_INTERFACE ".Attach", params, &reply, NULL);
	if (r == 0 && !take_process(json_object_get(reply, "process"), process))
		r = -EPROTO;
	json_decref(reply);
	return r;
}

int daemon_export(struct query_client *c, pid_t pid, uint64_t start, bool code,
		  struct export **outp)
{
	_cleanup_close_ int fd = -1;
	json_t *reply = NULL, *params;
	int r;

	params = json_pack("{s:i, s:I, s:b}", "pid", (int)pid, "start", (json_int_t)start, "code",
			   (int)code);
	if (!params)
		return -ENOMEM;
	r = query_client_call(c, QUERY_INTERFACE ".Export", params, &reply, &fd);
	json_decref(reply);
	if (r)
		return r;
	r = fd < 0 ? EXPORT_E_INVALID : export_open(outp, fd);
	return r > 0 ? -EPROTO : r;
}

int daemon_write_map(struct query_client *c, pid_t pid, uint64_t start, json_t **replyp)
{
	json_t *params = json_pack("{s:i, s:I}", "pid", (int)pid, "start", (json_int_t)start);
	int r;

	if (!params)
		return -ENOMEM;
	*replyp = NULL;
	r = query_client_call(c, QUERY_INTERFACE ".WriteMap", params, replyp, NULL);
	if (r) {
		json_decref(*replyp);
		*replyp = NULL;
	}
	return r;
}
