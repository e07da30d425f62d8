/* SPDX-License-Identifier: Apache-2.0 */
/* strtoull() takes signs, blanks and half a word; these do not. */
#include "base/number.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

static bool parse_digits(const char *s, uint64_t *vp, char **endp)
{
	if (s[0] < '0' || s[0] > '9')
		return false;
	errno = 0;
	*vp = strtoull(s, endp, 10);
	return !errno;
}

bool parse_u64(const char *s, uint64_t max, uint64_t *vp)
{
	uint64_t v;
	char *end;

	if (!parse_digits(s, &v, &end) || *end || v > max)
		return false;
	*vp = v;
	return true;
}

bool parse_size(const char *s, size_t *bytesp)
{
	unsigned int shift = 0;
	uint64_t v;
	char *end;

	if (!parse_digits(s, &v, &end))
		return false;
	if (*end == 'k' || *end == 'K')
		shift = 10;
	else if (*end == 'M')
		shift = 20;
	else if (*end == 'G')
		shift = 30;
	end += shift != 0;
	if (*end || !v || v > SIZE_MAX >> shift)
		return false;
	*bytesp = (size_t)v << shift;
	return true;
}

bool parse_pid(const char *s, pid_t *pidp)
{
	uint64_t v;

	if (!parse_u64(s, INT_MAX, &v) || !v)
		return false;
	*pidp = (pid_t)v;
	return true;
}
