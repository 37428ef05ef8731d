# A Redis host's first boot: the tensor module, a certificate of its own, the server behind a password.
# The header also sets RANK, SIGNAL_URL, SECRET, MODULE, BUCKET, PORT and THREADS.
concluded() { # complete|failed: CloudFormation's wait condition hears of it; a failed host is of no use
  [ "$1" = complete ] && status=SUCCESS || status=FAILURE
  attempt cloud signal "$SIGNAL_URL" "$NAME" "$status" "$LOG"
  [ "$1" = complete ] || systemctl poweroff
}
@common.sh@

apt update
apt install -y --no-install-recommends ca-certificates openssl redis-server
systemctl stop redis-server
agent

# Debian's unit lets redis-server execute nothing outside /usr/lib.
install -d -m 0755 /usr/lib/crossover
attempt cloud get "$MODULE" /usr/lib/crossover/tensors.so
chmod 0755 /usr/lib/crossover/tensors.so

address=$(attempt cloud metadata local-ipv4)
install -d -m 0750 -o root -g redis /etc/redis/tls
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 60 -subj "/CN=redis-$RANK" \
  -addext "subjectAltName=IP:$address" -keyout /etc/redis/tls/key.pem -out /etc/redis/tls/certificate.pem
chgrp redis /etc/redis/tls/*.pem
chmod 0640 /etc/redis/tls/*.pem

password=$(attempt cloud secret "$SECRET")
hidden=$password # in whatever is told
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
systemctl enable --now redis-server || { journalctl --no-pager -n 40 -u redis-server; false; }

ping() { REDISCLI_AUTH=$password redis-cli -e -h "$address" -p "$PORT" --tls --cacert /etc/redis/tls/certificate.pem "$@"; }
attempt ping tensor.stats
attempt cloud put /etc/redis/tls/certificate.pem "s3://$BUCKET/hosts/redis/$RANK.pem"
outcome=complete
