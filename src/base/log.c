/* SPDX-License-Identifier: Apache-2.0 */
/* One write(2) a line, so that lines of several processes never mix. */
#include "base/log.h"

#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

static const char *log_program = "clrsym";
static enum log_level log_level = LOG_INFO;
static bool log_journal;

void log_init(const char *program, enum log_level level)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	log_program = program;
	log_level = level;
	log_journal = stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
		      fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

void log_line(enum log_level level, const char *fmt, ...)
{
	static const char priority[] = { '3', '4', '6', '7' };
	char line[2048];
	size_t len = 0;
	va_list ap;
	int n;

	if (level > log_level)
		return;
	if (log_journal)
		n = snprintf(line, sizeof(line), "<%c>", priority[level]);
	else
		n = snprintf(line, sizeof(line), "%s: %s", log_program,
			     level == LOG_WARN ? "warning: " : "");
	len = (size_t)n;
	va_start(ap, fmt);
	n = vsnprintf(line + len, sizeof(line) - len - 1, fmt, ap);
	va_end(ap);
	if (n > 0)
		len = MIN(len + (size_t)n, sizeof(line) - 2);
	line[len++] = '\n';
	if (write(STDERR_FILENO, line, len) < 0)
		return; /* nobody listens: there is no better place to say so */
}

bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, uint32_t *droppedp)
{
	if (now_ns - limit->window_start_ns >= LOG_LIMIT_WINDOW_NS) {
		limit->window_start_ns = now_ns;
		limit->in_window = 0;
	}
	if (limit->in_window >= LOG_LIMIT_BURST) {
		limit->dropped++;
		return false;
	}
	limit->in_window++;
	*droppedp = limit->dropped;
	limit->dropped = 0;
	return true;
}
