# A Redis host's first boot: the tensor module, a certificate of its own, the server behind a password.
# The header that CDK writes before this sets RANK, REGION, SIGNAL_URL, SECRET, MODULE, BUCKET, PORT, THREADS and DEB.
set -Eeuo pipefail

signal() { # STATUS REASON: tells CloudFormation's wait condition
  curl -sS --retry 5 -X PUT -H 'Content-Type:' \
    --data-binary "{\"Status\":\"$1\",\"UniqueId\":\"redis-$RANK\",\"Reason\":\"$2\",\"Data\":\"$RANK\"}" "$SIGNAL_URL"
}
trap 'signal FAILURE "redis host $RANK: line $LINENO of its boot script failed; its /var/log/cloud-init-output.log says why"' ERR

attempt() { # COMMAND...: the instance's role and the package archives may need a moment
  for pause in 2 4 8 16 32 0; do "$@" && return; sleep "$pause"; done
  return 1
}

export DEBIAN_FRONTEND=noninteractive AWS_DEFAULT_REGION=$REGION
attempt apt-get -q update
attempt apt-get -q install -y --no-install-recommends awscli ca-certificates curl openssl redis-server
systemctl stop redis-server

work=$(mktemp -d)
attempt curl -sSf -o "$work/agent.deb" \
  "https://s3.$REGION.amazonaws.com/amazon-ssm-$REGION/latest/debian_$DEB/amazon-ssm-agent.deb"
dpkg -i "$work/agent.deb"
systemctl enable --now amazon-ssm-agent

# Debian's unit lets redis-server execute nothing outside /usr/lib.
install -d -m 0755 /usr/lib/crossover
attempt aws s3 cp --only-show-errors "$MODULE" /usr/lib/crossover/tensors.so

token=$(curl -sSf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' http://169.254.169.254/latest/api/token)
address=$(curl -sSf -H "X-aws-ec2-metadata-token: $token" http://169.254.169.254/latest/meta-data/local-ipv4)
install -d -m 0750 -o root -g redis /etc/redis/tls
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 60 -subj "/CN=redis-$RANK" \
  -addext "subjectAltName=IP:$address" -keyout /etc/redis/tls/key.pem -out /etc/redis/tls/certificate.pem
chgrp redis /etc/redis/tls/*.pem
chmod 0640 /etc/redis/tls/*.pem

password=$(attempt aws secretsmanager get-secret-value --secret-id "$SECRET" --query SecretString --output text)
memory_mb=$(awk '/MemTotal/ { print int($2 / 1024 * 0.7) }' /proc/meminfo)
# appendfsync always: what a step was told is stored is there after a crash, so nobody has to create it again.
(umask 077 && cat >/etc/redis/redis.conf) <<CONF
bind *
port 0
tls-port $PORT
tls-cert-file /etc/redis/tls/certificate.pem
tls-key-file /etc/redis/tls/key.pem
tls-auth-clients no
tls-protocols "TLSv1.2 TLSv1.3"
requirepass $password
loadmodule /usr/lib/crossover/tensors.so threads $THREADS
dir /var/lib/redis
appendonly yes
appendfsync always
save ""
maxmemory ${memory_mb}mb
maxmemory-policy noeviction
client-output-buffer-limit normal 0 0 0
tcp-keepalive 60
disable-thp no
CONF
chown root:redis /etc/redis/redis.conf
chmod 0640 /etc/redis/redis.conf
# New memory for each large value on its way in and out: huge pages make its first touches 512 times rarer, and what was freed is taken
# again within seconds (jemalloc returns pieces of 8 MB and more at once, to be cleared once more).
install -d /etc/systemd/system/redis-server.service.d
printf '[Service]\nEnvironment=MALLOC_CONF=thp:always,oversize_threshold:0\n' >/etc/systemd/system/redis-server.service.d/memory.conf
systemctl daemon-reload
systemctl enable --now redis-server

ping() { REDISCLI_AUTH=$password redis-cli -e -h "$address" -p "$PORT" --tls --cacert /etc/redis/tls/certificate.pem "$@"; }
attempt ping tensor.stats
aws s3 cp --only-show-errors /etc/redis/tls/certificate.pem "s3://$BUCKET/hosts/redis/$RANK.pem"
rm -rf "$work"
signal SUCCESS "redis host $RANK is ready"
