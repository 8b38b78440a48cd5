#!/bin/sh
# Back up and restore PostgreSQL under Patroni, as the user postgres:
#
#   backup.sh                           copy the data to $BACKUP/base, verify the copy, remove older WAL from $BACKUP/wal.
#                                       Does nothing on a standby: let cron run it every night on all three machines
#   backup.sh restore name POINT        while Patroni is stopped everywhere: put the copy in the place of the data, and
#   backup.sh restore time TIMESTAMP    replay the WAL up to this restore point or time
#
# $BACKUP is a disk of another machine, mounted on all three. Data that was replaced stays beside the new, as *.old.
set -eu
BACKUP=${BACKUP:-/mnt/backup}
PGDATA=${PGDATA:-/var/lib/postgresql/15/titanic}
PATH=/usr/lib/postgresql/15/bin:$PATH
in_recovery() { psql -Atc 'SELECT pg_is_in_recovery()'; }

if [ $# = 0 ]; then
    state=$(in_recovery)
    [ "$state" = f ] || exit 0
    rm -rf "$BACKUP/new"
    pg_basebackup --pgdata="$BACKUP/new" --checkpoint=fast --wal-method=stream
    pg_verifybackup "$BACKUP/new"
    rm -rf "$BACKUP/base"
    mv "$BACKUP/new" "$BACKUP/base"
    # The copy says which WAL it needs first.
    pg_archivecleanup "$BACKUP/wal" "$(sed -n 's/^START WAL.*file \(.*\))/\1/p' "$BACKUP/base/backup_label")"
elif [ $# = 3 ] && [ "$1" = restore ]; then
    test -f "$BACKUP/base/backup_label"
    mv "$PGDATA" "$PGDATA.old"
    cp -a "$BACKUP/base" "$PGDATA"
    cat >>"$PGDATA/postgresql.auto.conf" <<END
restore_command = 'cp $BACKUP/wal/%f %p'
recovery_target_$2 = '$3'
recovery_target_action = 'promote'
END
    touch "$PGDATA/recovery.signal"
    # The copy has the address of the machine that was copied.
    pg_ctl start --pgdata="$PGDATA" --log="$PGDATA.log" --options="-c listen_addresses=''" --wait
    state=t
    while [ "$state" != f ]; do
        sleep 1
        state=$(in_recovery)  # if PostgreSQL has ended, its log says why
    done
    pg_ctl stop --pgdata="$PGDATA" --mode=fast --wait
else
    echo "usage: backup.sh [restore name POINT | restore time TIMESTAMP]" >&2
    exit 2
fi
