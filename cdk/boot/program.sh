# A fleet instance's boot: the program from its zip, run as a service; the instance leaves the fleet when the program has ended.
# The header also sets CODE, VENV, PROGRAM, MAXIMUM_S and ENVIRONMENT.
concluded() { # complete|failed: an instance whose boot failed is of no use
  [ "$1" = complete ] || attempt cloud leave || systemctl poweroff # the group replaces it then, but that is all that is left
}
@common.sh@

cat >/usr/local/bin/leave-fleet <<LEAVE
#!/bin/bash
export AWS_DEFAULT_REGION=$REGION
for pause in 2 4 8 16 32 0; do python3 -I $CLOUD leave && exit; sleep \$pause; done
systemctl poweroff
LEAVE
chmod 0755 /usr/local/bin/leave-fleet
systemd-run --quiet --on-active="${MAXIMUM_S}s" --unit=longest-run /usr/local/bin/leave-fleet

if [ ! -x "$VENV/bin/python" ]; then # an image with PyTorch has one
  apt update
  apt install -y --no-install-recommends ca-certificates python3-venv
  python3 -m venv "$VENV"
fi
agent

useradd --system --home-dir /opt/crossover crossover
install -d -m 0755 /opt/crossover/code
attempt cloud get "$CODE" /opt/crossover/code.zip
python3 -m zipfile -e /opt/crossover/code.zip /opt/crossover/code
attempt "$VENV/bin/python" -m pip install --quiet --no-cache-dir --no-deps --require-hashes --only-binary=:all: \
  --requirement /opt/crossover/code/requirements.txt
"$VENV/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
printf '%s\n' "$ENVIRONMENT" >/etc/crossover.env

# Started again four times in an hour at most, counted anew where it got as far as a checkpoint in between. %b is this boot's own number: by
# it the program knows a lease of the one before it. RestartMode: from systemd 254 on a unit that is started again has failed before, which
# would be OnFailure's moment.
cat >/etc/systemd/system/crossover.service <<UNIT
[Unit]
Description=Crossover program
OnSuccess=leave-fleet.service
OnFailure=leave-fleet.service
StartLimitIntervalSec=1h
StartLimitBurst=4
[Service]
User=crossover
WorkingDirectory=/opt/crossover/code
RuntimeDirectory=crossover
EnvironmentFile=/etc/crossover.env
Environment=AWS_DEFAULT_REGION=$REGION CROSSOVER_INSTANCE=%b CROSSOVER_PROGRESS=/run/crossover/progress
ExecStart=$VENV/bin/python -c 'from $PROGRAM import main; main()'
ExecStopPost=+/bin/sh -c '[ ! -e /run/crossover/progress ] || systemctl reset-failed crossover'
Restart=on-failure
RestartMode=direct
RestartSec=5
UNIT
cat >/etc/systemd/system/leave-fleet.service <<UNIT
[Unit]
Description=Leave the fleet
[Service]
Type=oneshot
ExecStart=/usr/local/bin/leave-fleet
UNIT
systemctl daemon-reload
systemctl start crossover
outcome=complete
