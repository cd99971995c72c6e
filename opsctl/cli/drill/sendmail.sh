#!/bin/sh
# The mail programs of `opsctl drill`, `sendmail` and `sendmail-backup`: they keep every mail beside them, or fail as a mail
# server that is down; the first one also as a server whose login has expired.
here=$(dirname "$0")
[ ! -e "$here/mail-down" ] || exit 75
[ ! -e "$here/mail-expired" ] || [ "$(basename "$0")" != sendmail ] || exit 77
exec cat >>"$here/mails"
