/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading perf's configuration, by perf's own rules, for an image is of use only where perf looks
 * for it. Tried with perf 6.1 (perf-config(1) does not tell all of it):
 *
 *  - $PERF_CONFIG names the only file. Else /etc/perfconfig (not with $PERF_CONFIG_NOSYSTEM), then
 *    $HOME/.perfconfig (not with $PERF_CONFIG_NOGLOBAL, and only if it is root's or the caller's);
 *    what is read later wins.
 *  - A line that makes no sense ends the reading of that file; what stood above it counts. If the
 *    file was the system's, the user's is not read.
 *  - Nothing expands a "~", though the manual page has one in its example: it is a directory of
 *    that name, and a relative path is one from where perf is started.
 *
 * The syntax: [section] or [section "part"], name = value; comments from # or ;. In a value, runs
 * of blanks count as one, "..." keeps them, and \ escapes \, ", n, t, b and the end of a line.
 */
#include "perfdata/perfconfig.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/util.h"

/* Longer names and values are none that perf takes. */
#define NAME_SIZE     128u
#define VALUE_SIZE    1024u

#define SYSTEM_CONFIG "/etc/perfconfig"

/* -- Syntax ---------------------------------------------------------------------------- */

struct word {
	char text[VALUE_SIZE];
	size_t len;
};

static bool word_put(struct word *w, int c)
{
	if (w->len + 1 >= sizeof(w->text))
		return false;
	w->text[w->len++] = (char)c;
	w->text[w->len] = '\0';
	return true;
}

/* The next character; lines end in "\n" or "\r\n", the last one also at the end of the file. */
static int next_char(FILE *f)
{
	int c = getc(f);

	if (c != '\r')
		return c;
	c = getc(f);
	if (c == '\n')
		return c;
	ungetc(c, f);
	return '\r';
}

static bool ends_line(int c)
{
	return c == '\n' || c == EOF;
}

static bool is_name_char(int c)
{
	return isalnum(c) || c == '-' || c == '_';
}

static void skip_line(FILE *f)
{
	while (!ends_line(next_char(f)))
		continue;
}

/* What stands for the character after a backslash; 0 for the end of a line, -1 for nonsense. */
static int unescape(int c)
{
	switch (c) {
	case '\n': return 0;
	case 'n': return '\n';
	case 't': return '\t';
	case 'b': return '\b';
	case '\\':
	case '"': return c;
	default: return -1;
	}
}

/* The rest of a line, after "=". */
static bool read_value(FILE *f, struct word *w)
{
	bool quoted = false, blank = false;
	int c;

	*w = (struct word){ 0 };
	while (!ends_line(c = next_char(f))) {
		if (!quoted && isspace(c)) {
			blank = true;
			continue;
		}
		if (!quoted && (c == '#' || c == ';')) {
			skip_line(f);
			return true;
		}
		if (blank && w->len && !word_put(w, ' '))
			return false;
		blank = false;
		if (c == '"') {
			quoted = !quoted;
			continue;
		}
		if (c == '\\') {
			c = unescape(next_char(f));
			if (c < 0)
				return false;
			if (c == 0)
				continue;
		}
		if (!word_put(w, c))
			return false;
	}
	return !quoted;
}

/* After "[", to "]". A section in two parts is never ours: its name is then left empty. */
static bool read_section(FILE *f, char name[NAME_SIZE])
{
	size_t len = 0;
	int c;

	while ((c = next_char(f)) != ']') {
		if (isspace(c) && c != '\n') {
			name[0] = '\0';
			while (c != ']' && !ends_line(c))
				c = next_char(f);
			return c == ']';
		}
		if ((!is_name_char(c) && c != '.') || len + 1 >= NAME_SIZE)
			return false;
		name[len++] = (char)tolower(c);
	}
	name[len] = '\0';
	return len > 0;
}

/* A line "name = value" whose first character is c. perf lowers the case of that one only. */
static bool read_setting(FILE *f, int c, char name[NAME_SIZE], struct word *value)
{
	size_t len = 0;

	for (c = tolower(c); is_name_char(c); c = next_char(f)) {
		if (len + 1 >= NAME_SIZE)
			return false;
		name[len++] = (char)c;
	}
	name[len] = '\0';
	while (c == ' ' || c == '\t')
		c = next_char(f);
	return c == '=' && read_value(f, value);
}

/* A byte order mark, or nothing of it. */
static bool skip_mark(FILE *f)
{
	static const uint8_t mark[] = { 0xef, 0xbb, 0xbf };
	size_t i;

	for (i = 0; i < sizeof(mark); i++) {
		int c = getc(f);

		if (c != mark[i]) {
			ungetc(c, f);
			return i == 0;
		}
	}
	return true;
}

/* 0, 1 when it ends in nonsense, or -ENOMEM. */
static int read_file(FILE *f, char **dirp)
{
	char section[NAME_SIZE] = "", name[NAME_SIZE];
	struct word value;
	int c;

	if (!skip_mark(f))
		return 1;
	while ((c = next_char(f)) != EOF) {
		char *dir;

		if (isspace(c))
			continue;
		if (c == '#' || c == ';') {
			skip_line(f);
			continue;
		}
		if (c == '[') {
			if (!read_section(f, section))
				return 1;
			continue;
		}
		if (!isalpha(c) || !read_setting(f, c, name, &value))
			return 1;
		if (strcmp(section, "buildid") != 0 || strcmp(name, "dir") != 0)
			continue;
		dir = strdup(value.text);
		if (!dir)
			return -ENOMEM;
		free(*dirp);
		*dirp = dir;
	}
	return 0;
}

/* -- Files ----------------------------------------------------------------------------- */

/* NULL if there is none that perf would read: perf waits for a FIFO, we do not. */
static FILE *open_config(const char *path, bool of_user)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	FILE *f;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return NULL;
	if (of_user && st.st_uid != 0 && st.st_uid != geteuid())
		return NULL;
	f = fdopen(fd, "r");
	if (f)
		TAKE_FD(fd);
	return f;
}

static int read_config(const char *path, bool of_user, char **dirp)
{
	_cleanup_fclose_ FILE *f = open_config(path, of_user);

	return f ? read_file(f, dirp) : 0;
}

static bool env_is_true(const char *name)
{
	const char *v = getenv(name);

	return v && (!strcasecmp(v, "true") || !strcasecmp(v, "yes") || !strcasecmp(v, "on") ||
		     strtol(v, NULL, 0) != 0);
}

static int read_all(char **dirp)
{
	_cleanup_free_ char *path = NULL;
	const char *only = getenv("PERF_CONFIG"), *home = getenv("HOME");
	int r;

	if (only)
		return read_config(only, false, dirp);
	if (!env_is_true("PERF_CONFIG_NOSYSTEM")) {
		r = read_config(SYSTEM_CONFIG, false, dirp);
		if (r)
			return r;
	}
	if (!home || env_is_true("PERF_CONFIG_NOGLOBAL"))
		return 0;
	if (asprintf(&path, "%s/.perfconfig", home) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	return read_config(path, true, dirp);
}

int perfconfig_buildid_dir(char **dirp)
{
	_cleanup_free_ char *dir = NULL;
	int r;

	*dirp = NULL;
	r = read_all(&dir);
	if (r < 0)
		return r;
	/* perf takes an empty one for none */
	if (dir && *dir)
		*dirp = TAKE_PTR(dir);
	return 0;
}
