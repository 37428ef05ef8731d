# What every boot begins with: whatever line it ends at, its log goes to CloudWatch, and `concluded complete` or `concluded failed` of the
# script that includes this is called. The header that CDK writes before that script sets REGION, LOGS, NAME, BOOT_S, SESSION_AGENT and
# SESSION_AGENT_SHA256.
set -Eeuo pipefail
export DEBIAN_FRONTEND=noninteractive AWS_DEFAULT_REGION=$REGION
LOG=/var/log/crossover-boot.log
CLOUD=/usr/local/lib/crossover-cloud.py
outcome=failed # until the last line of all says otherwise
failure="something ended it from outside, or it took longer than $BOOT_S s"

cloud() { HIDE=${hidden:-} python3 -I "$CLOUD" "$@"; } # user data is run by cloud-init, a Python program: its python3 is there

attempt() { # COMMAND...: the instance's role, its network and the package archives may need a moment
  for pause in ${PAUSES:-2 4 8 16 32 0}; do "$@" && return; sleep "$pause"; done
  return 1
}

apt() { attempt apt-get -q -o DPkg::Lock::Timeout=600 "$@"; } # first-boot updates hold the lock for minutes

ended() { # STATUS
  trap - ERR EXIT
  set +e
  systemctl stop boot-deadline.timer >/dev/null 2>&1
  [ "$outcome" = complete ] && echo "$NAME: boot complete" || echo "$NAME: boot failed with status $1: $failure"
  PAUSES='1 2 0' attempt cloud log "$LOGS" "$NAME" "$LOG" # before what may end the instance
  concluded "$outcome"
}
trap 'failure="line $LINENO, ${BASH_COMMAND%%$'"'\n'"'*}"' ERR
trap 'ended $?' EXIT

exec >"$LOG" 2>&1
chmod 0600 "$LOG"
install -d -m 0755 /usr/local/lib /usr/local/bin
cat >"$CLOUD" <<'PYTHON'
@cloud.py@
PYTHON
# The shell's own kill: an image need not have a program of that name.
systemd-run --quiet --on-active="${BOOT_S}s" --unit=boot-deadline /bin/sh -c "kill -TERM $$"

agent() { # the session manager's, a shell without SSH: on AWS's own images it is there already, elsewhere the one that is pinned, if one is
  systemctl is-active --quiet amazon-ssm-agent || snap list amazon-ssm-agent >/dev/null 2>&1 && return
  [ -n "$SESSION_AGENT" ] || return 0
  attempt cloud fetch "https://s3.$REGION.amazonaws.com/amazon-ssm-$REGION/$SESSION_AGENT/debian_$(dpkg --print-architecture)/amazon-ssm-agent.deb" \
    /var/cache/amazon-ssm-agent.deb "$SESSION_AGENT_SHA256"
  apt install -y /var/cache/amazon-ssm-agent.deb
  systemctl enable --now amazon-ssm-agent
}
