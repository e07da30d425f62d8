/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Borrowed rights: a walk below a target's root done as if the target did it.
 *
 * A target can name any path, and with a user and mount namespace of its own can even put
 * any directory it can see under any name. Walking such paths as root would lend it our
 * rights: reading another user's files through us, or planting files in directories that
 * it cannot write. So the file-system ids and the supplementary groups of this one thread
 * (glibc's setgroups() would change all threads; the bare system calls do not) become those
 * of the target for the length of a walk. The kernel takes the file capabilities
 * (CAP_DAC_OVERRIDE and kin) away while fsuid is not 0, and gives them back with it.
 *
 * An fsuid change has one more use: it makes fs.protected_symlinks see the link's owner
 * when a TMPDIR is a link in a sticky directory.
 *
 * Failing to return to our own rights cannot be lived with: the process ends.
 */
#include "proc/internal.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>

static uid_t fsuid_now(void)
{
	return (uid_t)setfsuid((uid_t)-1);
}

static gid_t fsgid_now(void)
{
	return (gid_t)setfsgid((gid_t)-1);
}

static int borrow(struct rights *r, uid_t uid, gid_t gid, size_t n_groups, const gid_t *groups)
{
	int n;

	r->fsuid = fsuid_now();
	r->fsgid = fsgid_now();
	/* root's groups add nothing to root's capabilities; a user has no other rights to take */
	if (r->fsuid == uid && (uid == 0 || r->fsgid == gid))
		return 0;
	if (geteuid() != 0)
		return 0; /* the kernel holds us to our own rights, which are nobody's but ours */
	n = getgroups(0, NULL);
	if (n < 0)
		return -errno;
	r->groups = calloc((size_t)n + 1, sizeof(*r->groups));
	if (!r->groups)
		return -ENOMEM;
	n = getgroups(n, r->groups);
	if (n < 0)
		return -errno;
	if (syscall(SYS_setgroups, n_groups, groups) < 0)
		return errno == EPERM ? PROC_E_DENIED : -errno;
	r->n_groups = n;
	setfsgid(gid);
	setfsuid(uid);
	/* without CAP_SETUID both fail silently: then better nothing than root's rights */
	if (fsuid_now() != uid || fsgid_now() != gid) {
		rights_return(r);
		return PROC_E_DENIED;
	}
	return 0;
}

int rights_borrow(struct rights *r, const struct proc *p)
{
	struct parse_status status;
	int e;

	e = proc_status(p, &status);
	if (e)
		return e;
	return borrow(r, status.fsuid, status.fsgid, status.n_groups, status.groups);
}

int rights_borrow_ids(struct rights *r, uid_t uid, gid_t gid)
{
	return borrow(r, uid, gid, 0, NULL);
}

void rights_return(struct rights *r)
{
	if (r->n_groups >= 0) {
		setfsuid(r->fsuid);
		setfsgid(r->fsgid);
		if (syscall(SYS_setgroups, (size_t)r->n_groups, r->groups) < 0 ||
		    fsuid_now() != r->fsuid || fsgid_now() != r->fsgid)
			abort();
	}
	free(r->groups);
	*r = (struct rights)RIGHTS_OWN;
}
