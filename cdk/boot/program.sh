# A fleet instance's boot: the program from its zip, run as a service; the instance leaves the fleet when the program has ended.
# The header that CDK writes before this sets REGION, CODE, REQUIREMENTS, PROGRAM, FLEET, MAXIMUM_S and ENVIRONMENT.
set -Eeuo pipefail

attempt() { # COMMAND...: the instance's role and the package archives may need a moment
  for pause in 2 4 8 16 32 0; do "$@" && return; sleep "$pause"; done
  return 1
}

# A mere shutdown would make the group start a replacement.
install -d -m 0755 /usr/local/bin
cat >/usr/local/bin/leave-fleet <<LEAVE
#!/bin/bash
token=\$(curl -sSf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' http://169.254.169.254/latest/api/token)
self=\$(curl -sSf -H "X-aws-ec2-metadata-token: \$token" http://169.254.169.254/latest/meta-data/instance-id)
aws autoscaling terminate-instance-in-auto-scaling-group --region $REGION --instance-id "\$self" --should-decrement-desired-capacity
LEAVE
chmod 0755 /usr/local/bin/leave-fleet
systemd-run --on-active="${MAXIMUM_S}s" --unit=longest-run /usr/local/bin/leave-fleet
trap '/usr/local/bin/leave-fleet' ERR # an instance whose boot failed is of no use

export DEBIAN_FRONTEND=noninteractive AWS_DEFAULT_REGION=$REGION
attempt apt-get -q update
packages='ca-certificates curl python3-venv unzip'
command -v aws >/dev/null || packages="awscli $packages" # Debian has it as a package, AWS's own images have it already
attempt apt-get -q install -y --no-install-recommends $packages
if ! systemctl is-active --quiet amazon-ssm-agent && ! snap list amazon-ssm-agent >/dev/null 2>&1; then
  agent=$(mktemp --suffix=.deb)
  attempt curl -sSf -o "$agent" \
    "https://s3.$REGION.amazonaws.com/amazon-ssm-$REGION/latest/debian_$(dpkg --print-architecture)/amazon-ssm-agent.deb"
  dpkg -i "$agent"
  systemctl enable --now amazon-ssm-agent
fi

useradd --system --home-dir /opt/crossover crossover
install -d -m 0755 /opt/crossover/code
attempt aws s3 cp --only-show-errors "$CODE" /opt/crossover/code.zip
unzip -q /opt/crossover/code.zip -d /opt/crossover/code
python3 -m venv --system-site-packages /opt/crossover/venv
attempt /opt/crossover/venv/bin/pip install --quiet --no-cache-dir $REQUIREMENTS
printf '%s\n' "$ENVIRONMENT" >/etc/crossover.env

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
EnvironmentFile=/etc/crossover.env
Environment=AWS_DEFAULT_REGION=$REGION
ExecStart=/opt/crossover/venv/bin/python -c 'from $PROGRAM import main; main()'
Restart=on-failure
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
