/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors in words: one line, the cause and what can be done. Whatever of it a target wrote
 * (its name, TMPDIR, the path of a socket) is escaped.
 */
#include "proc/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>

#include "base/escape.h"

static const char *show(const char *s)
{
	return escape_terminal(s, strlen(s));
}

/* Two texts in one line of the caller's must not share a buffer. */
static const char *say(const char *fmt, ...) PRINTF_LIKE(1, 2);

static const char *say(const char *fmt, ...)
{
	static char ring[4][1536];
	static unsigned int next;
	char *out = ring[next++ % 4];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(out, sizeof(ring[0]), fmt, ap);
	va_end(ap);
	return out;
}

/* Why would a process have no diagnostic socket? Asked only when it has none. */
static const char *why_no_socket(const struct proc *p, const struct proc_socket_report *report)
{
	static const char *const switches[] = { "EnableDiagnostics", "EnableDiagnostics_IPC" };
	_cleanup_free_ char *dir = NULL;
	_cleanup_close_ int root_fd = -1, dir_fd = -1;
	enum proc_dotnet kind;
	const char *variable;
	bool not_dotnet;
	uint64_t value;
	size_t i;

	not_dotnet = proc_detect_dotnet(p, &kind) == 0 && kind == PROC_NOT_DOTNET;
	for (i = 0; i < ARRAY_SIZE(switches); i++) {
		if (proc_get_setting(p, switches[i], &variable, &value) || !variable || value)
			continue;
		/* a single-file program maps no libcoreclr.so either */
		if (not_dotnet)
			return say("%s (%d) is not a .NET process, or a single-file one whose "
				   "environment has %s=0; if so, restart it without that",
				   show(p->comm), p->pid, variable);
		return say("%s (%d) has no diagnostic socket: its environment has %s=0; restart it "
			   "without that",
			   show(p->comm), p->pid, variable);
	}
	if (not_dotnet)
		return say("%s (%d) is not a .NET process: no libcoreclr.so is mapped and no "
			   "diagnostic socket is there",
			   show(p->comm), p->pid);
	if (proc_socket_dir(p, &dir) == 0 && proc_open_root(p, &root_fd) == 0 && *dir == '/') {
		dir_fd = proc_openat2(root_fd, dir, O_PATH | O_DIRECTORY,
				      RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
		if (dir_fd < 0 && (errno == ENOENT || errno == ENOTDIR))
			return say("%s (%d) has no diagnostic socket: its temporary directory %s "
				   "does not exist; make it and restart the process",
				   show(p->comm), p->pid, show(dir));
		if (dir_fd >= 0 && faccessat(dir_fd, ".", W_OK, AT_EACCESS) < 0 && errno == EROFS)
			return say("%s (%d) has no diagnostic socket: its temporary directory %s "
				   "is read-only; give it a writable one (TMPDIR) and restart it",
				   show(p->comm), p->pid, show(dir));
	}
	return say("%s (%d) has no diagnostic socket in %s%s; if it has just started, try again, "
		   "otherwise give its path",
		   show(p->comm), p->pid, dir ? show(dir) : "/tmp",
		   report && report->stale ? " (only those of earlier processes)" : "");
}

static const char *socket_text(const struct proc *p, int error,
			       const struct proc_socket_report *report)
{
	static const struct proc_socket_report none;
	const char *path;

	if (!report)
		report = &none;
	path = report->path[0] ? show(report->path) : "its diagnostic socket";
	switch (error) {
	case PROC_E_NO_SOCKET: return why_no_socket(p, report);
	case PROC_E_STALE_SOCKET:
		return say("nobody listens on %s any more: %s (%d) shut its diagnostics down or "
			   "runs another program now",
			   path, show(p->comm), p->pid);
	case PROC_E_SOCKET_GONE:
		return say("%s (%d) listens on %s, but that file was deleted (a cleaner of /tmp?); "
			   "only a restart of the process brings it back",
			   show(p->comm), p->pid, path);
	case PROC_E_LOOSE_SOCKET:
		if (!report->path[0])
			return "the diagnostic socket's owner or mode is not what a runtime makes";
		if (!S_ISSOCK(report->mode))
			return say("%s is not a socket: somebody took the name; remove it", path);
		return say("%s has owner %u and mode %04o where %u and 0600 are expected: "
			   "somebody may have planted it; if it is right, allow loose sockets",
			   path, report->owner, report->mode & 07777, p->euid);
	case PROC_E_WRONG_PEER:
		/* no stream socket, or the listener is in a pid namespace that we do not see */
		if (report->peer_pid == 0)
			return say("something else than %s (%d) listens on %s: not connected",
				   show(p->comm), p->pid, path);
		return say("process %d (uid %u) and not %s (%d) listens on %s: not connected",
			   report->peer_pid, report->peer_uid, show(p->comm), p->pid, path);
	default: /* BUSY */
		return say("%s (%d) does not answer: the queue of %s is full; it may be stopped or "
			   "in a debugger",
			   show(p->comm), p->pid, path);
	}
}

const char *proc_error_text(const struct proc *p, int error,
			    const struct proc_socket_report *report)
{
	if (error < 0)
		return strerror(-error);
	switch (error) {
	case 0: return "no error";
	case PROC_E_GONE: return p ? say("process %d has exited", p->pid) : "no such process";
	case PROC_E_DENIED:
		if (!p)
			return "not permitted: run as root or as the process's user";
		if (report && report->path[0])
			return say(
				"%s of %s (%d) belongs to uid %u and may not be opened by uid %u: "
				"run as root or as that user",
				show(report->path), show(p->comm), p->pid,
				report->mode ? report->owner : p->euid, geteuid());
		if (geteuid() == 0)
			return say("%s (%d) may not be inspected: root needs the capability "
				   "CAP_SYS_PTRACE here",
				   show(p->comm), p->pid);
		return say("%s (%d) runs as uid %u and may not be inspected by uid %u: run as root "
			   "or as that user",
			   show(p->comm), p->pid, p->uid, geteuid());
	case PROC_E_NO_STATE:
		return "no directory for the lock: /run/clrsym for root, $XDG_RUNTIME_DIR/clrsym "
		       "for a "
		       "user must be ours alone; make it so, or set XDG_RUNTIME_DIR";
	case PROC_E_NO_FILE: return "no such file below the process's root";
	case PROC_E_OWN_MAP:
		return "the runtime keeps a perf map of its own (PerfMapEnabled, or switched on by "
		       "another tool): ours would fight over its name; switch that off";
	case PROC_E_FOREIGN_FILE:
		return "the map's name or directory belongs to somebody else: remove what is "
		       "there, "
		       "or write the map elsewhere";
	case PROC_E_NO_SPACE: return "no space left for the map: the old one stays";
	case PROC_E_READ_ONLY: return "there is no writable /tmp for the map";
	case PROC_E_LOCKED:
		return p ? say("another clrsym keeps process %d", p->pid)
			 : "another clrsym keeps this process";
	case PROC_E_TOO_BIG: return "a file of /proc is larger than it can rightly be";
	case PROC_E_SAME_PLACE: return "the same map file is already kept";
	default: return p ? socket_text(p, error, report) : "the diagnostic socket is not usable";
	}
}
