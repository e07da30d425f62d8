/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process has to do with .NET, as far as /proc shows it: its mappings, its initial
 * environment, its open files. All of it is a hint that decides whether talking to the
 * process is worth while; a process that lies here only gets asked in vain, or not at all.
 *
 * Settings have the prefix DOTNET_ (5 and later) or COMPlus_ (all), and their values are
 * hexadecimal; DOTNET_ wins.
 */
#include "proc/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/caps.h"

int proc_getenv(const struct proc *p, const char *name, char **valuep)
{
	_cleanup_buf_ struct buf text = { 0 };
	struct text value;
	int r;

	*valuep = NULL;
	r = proc_read_at(p->dir_fd, "environ", CAP_ENVIRON, &text);
	if (r && r != PROC_E_TOO_BIG)
		return r;
	if (!parse_environ(proc_text(&text), name, &value))
		return r;
	*valuep = strndup(value.p, text_len(value));
	return *valuep ? 0 : -ENOMEM;
}

int proc_get_setting(const struct proc *p, const char *name, const char **variablep,
		     uint64_t *valuep)
{
	static const char *const prefixes[] = { "DOTNET_", "COMPlus_" };
	_cleanup_buf_ struct buf text = { 0 };
	static char variable[64];
	size_t i;
	int r;

	*variablep = NULL;
	r = proc_read_at(p->dir_fd, "environ", CAP_ENVIRON, &text);
	if (r && r != PROC_E_TOO_BIG)
		return r;
	for (i = 0; i < ARRAY_SIZE(prefixes); i++) {
		struct text value;

		snprintf(variable, sizeof(variable), "%s%s", prefixes[i], name);
		if (!parse_environ(proc_text(&text), variable, &value))
			continue;
		if (text_begins(value, "0x") || text_begins(value, "0X"))
			value.p += 2;
		if (!text_u64(value, 16, valuep))
			continue;
		*variablep = variable;
		return 0;
	}
	return 0;
}

static int is_coreclr(void *data UNUSED, const struct proc_mapping *m)
{
	struct text name = text_basename(text_of(m->path, m->path_len));

	/* an update of the package leaves running processes with a deleted file */
	return text_equal(name, "libcoreclr.so") || text_equal(name, "libcoreclr.so (deleted)");
}

int proc_detect_dotnet(const struct proc *p, enum proc_dotnet *kindp)
{
	int r, mapped;
	bool yes;

	r = proc_each_mapping(p, is_coreclr, NULL, &mapped);
	if (r)
		return r;
	if (mapped) {
		*kindp = PROC_DOTNET;
		return 0;
	}
	r = proc_socket_listens(p, &yes);
	if (r)
		return r;
	*kindp = yes ? PROC_DOTNET_STATIC : PROC_NOT_DOTNET;
	return 0;
}

/* Does it hold its own map open for writing, wherever that is? */
static int holds_perf_map(const struct proc *p, bool *yesp)
{
	_cleanup_(dir_closep) DIR *dir = NULL;
	char want[48], link[4096];
	struct dirent *entry;
	unsigned int n_seen = 0;
	int fd;

	snprintf(want, sizeof(want), "/perf-%d.map", p->inner_pid);
	fd = openat(p->dir_fd, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return proc_error_of(errno);
	dir = fdopendir(fd);
	if (!dir) {
		fd_close(fd);
		return -ENOMEM;
	}
	while (n_seen++ < CAP_PROC_FDS && (entry = readdir(dir))) {
		struct stat st;
		ssize_t n;

		n = readlinkat(fd, entry->d_name, link, sizeof(link));
		if (n <= 0 || !text_ends(text_of(link, (size_t)n), want))
			continue;
		/* the link's own mode says how the file was opened */
		if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    (st.st_mode & S_IWUSR)) {
			*yesp = true;
			return 0;
		}
	}
	return 0;
}

int proc_own_perf_map(const struct proc *p, bool *yesp)
{
	const char *variable;
	uint64_t value;
	int r;

	*yesp = false;
	r = proc_get_setting(p, "PerfMapEnabled", &variable, &value);
	if (r)
		return r;
	/* 2 asks for a jitdump only (3.1 knew no difference: there the open file tells) */
	if (variable && value != 0 && value != 2) {
		*yesp = true;
		return 0;
	}
	/* switched on later, by EnablePerfMap over the socket */
	return holds_perf_map(p, yesp);
}

bool proc_may_compile(const struct proc *p)
{
	_cleanup_buf_ struct buf text = { 0 };
	_cleanup_(dir_closep) DIR *dir = NULL;
	unsigned int n_seen = 0;
	struct dirent *entry;
	int fd;

	fd = openat(p->dir_fd, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return true;
	dir = fdopendir(fd);
	if (!dir) {
		fd_close(fd);
		return true;
	}
	while ((entry = readdir(dir))) {
		struct parse_stat stat;
		char name[32];

		if (entry->d_name[0] == '.')
			continue;
		if (n_seen++ == CAP_PROC_TASKS)
			return true;
		snprintf(name, sizeof(name), "%.20s/stat", entry->d_name);
		buf_clear(&text);
		if (proc_read_at(fd, name, CAP_PROC_FILE, &text) ||
		    !parse_stat(text_of(text.data, text.len), &stat))
			continue; /* a thread that has just ended */
		/* the threads that serve us were at it a moment ago; they compile nothing */
		if (text_equal(stat.comm, ".NET EventPipe"))
			continue;
		if (stat.state == 'R' || stat.state == 'D')
			return true;
	}
	return false;
}
