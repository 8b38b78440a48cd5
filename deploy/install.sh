#!/bin/sh
# Install Titanic as a service of this machine. Run it again to upgrade; settings and data are kept.
set -eu
umask 022  # all users may read what is installed

usage() {
    cat <<'END'
Usage: install.sh [--prefix DIR] [--wheels DIR] [--python PROGRAM] [--postgres] [--web] [--tasks] [--archive] [--no-start]
       install.sh --rollback
       install.sh --uninstall [--purge]

Installs Titanic into its own virtual environment, with systemd units, and starts it.

  --prefix DIR      install below DIR (default: where Titanic is installed, or /opt/titanic)
  --wheels DIR      install from the wheels in DIR, without network access (default: from this source tree)
  --python PROGRAM  use this Python, 3.11 or newer (default: python3)
  --postgres        add the PostgreSQL driver
  --web             add the packages that titanic-web.service needs
  --tasks           add the packages for cron expressions (titanic-cron.service)
  --archive         add the packages that titanic-archive.service needs
  --no-start        do not enable or start anything
  --rollback        restore the version before the last upgrade
  --uninstall       remove the program; keep settings, data and backups
  --purge           with --uninstall: remove them too, and the users

Upgrades keep --postgres, --web, --tasks and --archive. Settings are in /etc/titanic/titanic.toml, the store is in
/var/lib/titanic, backups are in /var/backups/titanic. An upgrade restarts running units.
Exit codes: 0 done, 1 failed, 2 wrong usage.
END
}

mark=.titanic-environment
find_pip='import ensurepip, glob, os, sysconfig
folder = sysconfig.get_config_var("WHEEL_PKG_DIR") or os.path.dirname(ensurepip.__file__) + "/_bundled"
print(*glob.glob(folder + "/pip-[0-9]*.whl")[:1])'
prefix='' wheels='' python=python3 start=yes action=install purge=no archive=no postgres=no web=no tasks=no
fail() { echo "install.sh: $*" >&2; exit 1; }
wrong() { echo "install.sh: $*; install.sh --help lists the options" >&2; exit 2; }

while [ $# -gt 0 ]; do
    case $1 in
        --prefix | --wheels | --python)
            [ $# -gt 1 ] || wrong "$1 needs a value"
            case $1 in --prefix) prefix=$2 ;; --wheels) wheels=$2 ;; --python) python=$2 ;; esac
            shift ;;
        --no-start) start=no ;;
        --archive) archive=yes ;;
        --postgres) postgres=yes ;;
        --web) web=yes ;;
        --tasks) tasks=yes ;;
        --rollback | --uninstall) action=${1#--} ;;
        --purge) purge=yes ;;
        -h | --help) usage; exit 0 ;;
        *) wrong "unknown option $1" ;;
    esac
    shift
done
units=/etc/systemd/system
[ -n "$prefix" ] || [ ! -f $units/titanic.service ] ||
    prefix=$(sed -n 's|^ExecStart=\(.*\)/current/bin/titanic .*|\1|p' $units/titanic.service)
prefix=${prefix:-/opt/titanic}
case $prefix in /*) ;; *) wrong "--prefix must begin with a /" ;; esac
[ "$purge" = no ] || [ "$action" = uninstall ] || wrong "--purge goes with --uninstall"
[ "$(id -u)" = 0 ] || fail "not run as root; use sudo"

here=$(cd "$(dirname "$0")" && pwd)
settings=/etc/titanic/titanic.toml
services="titanic.service titanic-broker.service titanic-store.service titanic-worker@.service"
services="$services titanic-web.service titanic-cron.service titanic-backup.service titanic-backup.timer titanic-archive.service titanic-archive.timer"
notes=/var/lib/systemd  # where a Debian package keeps what of it was enabled, and masked

booted() { [ -d /run/systemd/system ]; }

enabled() {  # which of our units are
    for link in "$units"/*.wants/titanic*; do
        [ ! -L "$link" ] || basename "$link"
    done
}

running() {  # which of our units run, or of these
    booted || return 0
    systemctl list-units --plain --no-legend --state=active,activating,failed "${@:-titanic*.service}" | sed 's/ .*//'
}

restart() {
    booted || { echo "systemd is not running; no service was started"; return 0; }
    systemctl daemon-reload
    # The server first. New workers begin, and the old ones finish what they have, for which nothing waits.
    workers=$(running 'titanic-worker@*.service')
    were=$(running | grep -v '^titanic-\(backup\|archive\|worker@\)' || true)
    # shellcheck disable=SC2086  # a list of units
    [ -z "$were" ] || { systemctl reset-failed $were; systemctl restart $were; }
    # shellcheck disable=SC2086  # a list of units
    [ -z "$workers" ] || { systemctl reset-failed $workers; systemctl --no-block reload-or-restart $workers; }
}

start_first() {  # what a Debian package that was removed has left enabled is started, too
    case $(enabled) in
        *titanic-broker.service* | *titanic-store.service*) ;;  # they and titanic.service exclude each other
        *) systemctl --quiet enable titanic.service ;;
    esac
    # shellcheck disable=SC2046  # a list of units
    systemctl start $(enabled)
}

check_places() {  # before anything is changed: no half of it is to be there in the end
    for each in systemd-sysusers systemd-tmpfiles; do
        command -v $each >/dev/null || fail "$each not found; this script needs systemd"
    done
    for each in $units /etc /usr/local/bin "$prefix"; do
        while [ ! -e "$each" ]; do each=$(dirname "$each"); done
        [ -w "$each" ] || fail "cannot write to $each; is it mounted read-only? nothing was changed"
    done
}

make_environment() {  # a new one beside the old: what runs goes on undisturbed until it is restarted
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "Titanic needs Python 3.11 or newer, and $python is $("$python" -V 2>&1 || echo none); --python names another"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module; on Debian: apt-get install python3-venv"
    [ -n "$wheels" ] || [ -f "$here/../pyproject.toml" ] ||
        fail "no source tree beside this script; give --wheels DIR"
    mkdir -p "$prefix"
    new=$prefix/$(date +%Y%m%d-%H%M%S)-$$
    trap 'rm -rf "$new"' EXIT
    # ensurepip compiles pip, which takes half the time of an installation: its wheel is installed without that.
    wheel=$("$python" -c "$find_pip")
    "$python" -m venv ${wheel:+--without-pip} "$new"
    : >"$new/$mark"
    pip="$new/bin/python -m pip --quiet --disable-pip-version-check install --no-compile"
    [ -z "$wheel" ] || PYTHONPATH=$wheel $pip --no-index "$wheel"
    [ ! -e "$prefix/current/archive" ] || archive=yes
    [ ! -e "$prefix/current/postgres" ] || postgres=yes
    [ ! -e "$prefix/current/web" ] || web=yes
    [ ! -e "$prefix/current/tasks" ] || tasks=yes
    more='' extra=''
    if [ $postgres = yes ]; then
        extra=postgres
        touch "$new/postgres"
    fi
    if [ $web = yes ]; then
        extra=${extra:+$extra,}web
        touch "$new/web"
    fi
    if [ $tasks = yes ]; then
        extra=${extra:+$extra,}tasks
        touch "$new/tasks"
    fi
    [ -z "$extra" ] || extra="[$extra]"
    if [ $archive = yes ]; then
        more="pyarrow>=15 numpy"
        touch "$new/archive"
    fi
    # shellcheck disable=SC2086  # a list of packages
    if [ -n "$wheels" ]; then
        $pip --no-index --find-links "$wheels" "titanic-queue$extra" $more ||
            fail "a wheel is missing in $wheels, see above; nothing was changed"
    else
        $pip "$here/..$extra" $more ||
            fail "the dependencies could not be downloaded, see above; without a network, use --wheels DIR; nothing was changed"
    fi
    # Not what nothing imports: pip, half of numpy, a quarter of pygments.
    "$new/bin/python" -m compileall -q -x '/(lexers|pip|tests)/' "$new/lib" || true
    version=$("$new/bin/titanic" --version | cut -d' ' -f3)
    [ ! -e $settings ] || "$new/bin/titanic" config check $settings ||
        fail "Titanic $version does not understand these settings; nothing was changed"
    trap - EXIT
}

environments() {  # those that this script has made in the prefix, where others may have their folders, too
    for each in "$prefix"/[0-9]*-*-*; do
        [ ! -e "$each/$mark" ] || echo "$each"
    done
}

switch_to() {  # the links change at once, each by a rename
    ln -sfn "$1" "$prefix/current.new" && mv -fT "$prefix/current.new" "$prefix/current"
}

install_files() {
    mkdir -p "$prefix/lib" /etc/titanic $units /usr/local/bin
    cp "$here/titanic-backup" "$here/titanic-worker" "$prefix/lib/"
    for unit in $services; do
        rm -f "$units/$unit"  # a Debian package that was removed has left a link to /dev/null there
        # Only the Debian package has manual pages.
        sed "s|@BIN@|$prefix/current/bin|; s|@LIB@|$prefix/lib|; /^Documentation=man:titanic/d" "$here/systemd/$unit" >"$units/$unit"
    done
    # Its notes are about units that are ours now: it must not go by them, should it be purged or come back.
    rm -f $notes/deb-systemd-helper-enabled/titanic* $notes/deb-systemd-helper-enabled/*/titanic* \
        $notes/deb-systemd-helper-masked/titanic*
    mkdir -p /etc/sysusers.d /etc/tmpfiles.d
    cp "$here/systemd/sysusers.conf" /etc/sysusers.d/titanic.conf
    cp "$here/systemd/tmpfiles.conf" /etc/tmpfiles.d/titanic.conf
    systemd-sysusers /etc/sysusers.d/titanic.conf
    systemd-tmpfiles --create /etc/tmpfiles.d/titanic.conf
    # The commands for people, with the service's settings.
    for each in titanic titanic-data; do
        cat >/usr/local/bin/titanic.new <<END
#!/bin/sh
[ -n "\${TITANIC_CONFIG+set}" ] || [ ! -r /etc/titanic/titanic.toml ] || export TITANIC_CONFIG=/etc/titanic/titanic.toml
exec "$prefix/current/bin/$each" "\$@"
END
        chmod 755 /usr/local/bin/titanic.new
        mv -f /usr/local/bin/titanic.new /usr/local/bin/$each
    done
    if [ ! -e $settings ]; then
        sed 's|^#store = .*|store = "/var/lib/titanic/store"|; s|^#metrics = |metrics = |' "$here/titanic.toml" >$settings
    else
        cp "$here/titanic.toml" $settings.dist
        echo "$settings was kept; the new version is $settings.dist"
    fi
}

make_key() {  # the server's own, for access control: made once, and kept
    "$prefix/current/bin/titanic" keys server --dir /etc/titanic >/dev/null ||
        echo "/etc/titanic/server.key_secret was not created; access control needs it" >&2
}

do_install() {
    ! dpkg-query -W -f '${Status}' titanic-queue 2>/dev/null | grep -q ' installed$' ||
        fail "Titanic is already installed as a Debian package; remove it first: apt-get remove titanic-queue"
    check_places
    first=yes
    ! grep -qs '^ExecStart=.*/current/bin/titanic ' $units/titanic.service || first=no
    make_environment
    old=$(readlink "$prefix/current" || true)
    switch_to "$new"
    if [ -n "$old" ]; then
        ln -sfn "$old" "$prefix/previous"
        environments | while read -r each; do
            [ "$each" = "$new" ] || [ "$each" = "$old" ] || grep -qsF "$each/" /proc/[0-9]*/maps || rm -rf "$each"
        done
    fi
    install_files
    make_key
    if [ $start = no ]; then
        ! booted || systemctl daemon-reload
    elif [ $first = yes ] && booted; then
        systemctl daemon-reload
        start_first
    else
        restart
    fi
    echo "Titanic $version is installed in $prefix"
}

do_rollback() {
    old=$(readlink "$prefix/previous") || fail "no earlier version in $prefix"
    check_places
    now=$(readlink "$prefix/current")
    [ ! -e $settings ] || "$old/bin/titanic" config check $settings ||
        fail "the previous version does not understand these settings; change them first; nothing was changed"
    switch_to "$old"
    ln -sfn "$now" "$prefix/previous"
    restart
    echo "Titanic $("$prefix/current/bin/titanic" --version | cut -d' ' -f3) is active again"
}

do_uninstall() {
    if booted; then
        # shellcheck disable=SC2046  # a list of units
        systemctl --quiet stop $(running) titanic-backup.timer titanic-archive.timer 2>/dev/null || true
        # shellcheck disable=SC2046
        systemctl --quiet disable $(cd $units && ls -d titanic*.service titanic*.timer 2>/dev/null) 2>/dev/null || true
    fi
    for unit in $services; do rm -f "$units/$unit" "$units"/*.wants/"$unit"; done  # the links also where systemd sleeps
    rm -f "$units"/*.wants/titanic-worker@*.service
    ! booted || { systemctl daemon-reload; systemctl reset-failed 'titanic*' 2>/dev/null || true; }
    environments | while read -r each; do rm -rf "$each"; done
    rm -f "$prefix/current" "$prefix/previous" "$prefix/lib/titanic-backup" "$prefix/lib/titanic-worker"
    rmdir "$prefix/lib" "$prefix" 2>/dev/null || true  # what is left there is not ours
    rm -f /usr/local/bin/titanic /usr/local/bin/titanic-data /etc/sysusers.d/titanic.conf /etc/tmpfiles.d/titanic.conf
    if [ $purge = yes ]; then
        rm -rf /etc/titanic /var/lib/titanic /var/lib/titanic-web /var/backups/titanic /var/lib/systemd/timers/stamp-titanic-*.timer
        ! id titanic >/dev/null 2>&1 || userdel titanic
        ! id titanic-web >/dev/null 2>&1 || userdel titanic-web
        echo "Titanic was removed, with its settings, data and backups"
    else
        echo "Titanic was removed; /etc/titanic, /var/lib/titanic, /var/backups/titanic and both users were kept"
    fi
}

"do_$action"
