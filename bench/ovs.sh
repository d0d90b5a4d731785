#!/bin/bash
# CPU time of Open vSwitch over DPDK a packet, by locality: 10,000 UDP flows of 16 packets from a capture
# in memory.
#
#     bench/ovs.sh SLF RULES default|emc|smc
#
# default: its caches as installed; emc: each flow enters the exact match cache; smc: the signature match
# cache alone. Needs root, openvswitch-switch-dpdk, and 1,000 huge pages of 2 MiB
# (echo 1000 > /proc/sys/vm/nr_hugepages).
set -eu
SLF=$1; RULES=$2; MODE=$3
D=$(mktemp -d); export OVS_RUNDIR=$D
python3 - $D/slf.pcap $SLF <<'P'
import struct, random, sys
def frame(f):
    src=0x0a000000+f; dst=0x0a800000+(f*7919&0xffff)
    ip=bytearray(struct.pack('>BBHHHBBHII',0x45,0,46,0,0x4000,64,17,0,src,dst))
    s=sum(struct.unpack('>10H',ip)); s=(s&0xffff)+(s>>16); s=(s&0xffff)+(s>>16)
    ip[10:12]=struct.pack('>H',~s&0xffff)
    udp=struct.pack('>HHHH',1024+f%50000,9,26,0)
    return bytes.fromhex('020000000002020000000001')+b'\x08\x00'+bytes(ip)+udp+bytes(18)
def write(path,flows,packets,slf,seed=1):
    r=random.Random(seed); fs=[frame(f) for f in range(flows)]
    order=[]
    while len(order)*slf<packets:
        o=list(range(flows)); r.shuffle(o); order+=o
    with open(path,'wb') as f:
        f.write(struct.pack('<IHHiIII',0xa1b2c3d4,2,4,0,0,65535,1))
        n=0
        for o in order:
            for _ in range(slf):
                if n>=packets: break
                f.write(struct.pack('<IIII',n//1000000,n%1000000,60,60)+fs[o]); n+=1
write(sys.argv[1], 10000, 160000, int(sys.argv[2]))
P
ovsdb-tool create $D/db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server $D/db --remote=punix:$D/db.sock --unixctl=$D/db.ctl -vconsole:off -vsyslog:off --log-file=$D/db.log & DB=$!
sleep 0.5
set_() { ovs-vsctl --timeout=20 --db=unix:$D/db.sock "$@"; }
set_ --no-wait init
set_ --no-wait set Open_vSwitch . other_config:dpdk-init=true "other_config:dpdk-extra=--no-pci --in-memory" other_config:dpdk-socket-mem=900 other_config:pmd-cpu-mask=0x2 other_config:dpdk-lcore-mask=0x1
if [ $MODE = smc ]; then set_ --no-wait set Open_vSwitch . other_config:emc-insert-inv-prob=0 other_config:smc-enable=true; fi
if [ $MODE = emc ]; then set_ --no-wait set Open_vSwitch . other_config:emc-insert-inv-prob=1; fi
/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk unix:$D/db.sock --unixctl=$D/sw.ctl -vconsole:off -vsyslog:off --log-file=$D/sw.log & SW=$!
trap 'kill $SW $DB; wait; rm -rf $D' EXIT
sleep 2
set_ add-br br0 -- set bridge br0 datapath_type=netdev protocols=OpenFlow14
set_ add-port br0 p1 -- set interface p1 type=dpdk 'options:dpdk-devargs="net_null1,no-rx=1"' ofport_request=2
python3 - $RULES > $D/rules <<'P'
import sys
for n in range(1,int(sys.argv[1])):
    h,l=n>>8,n&255
    print(f"priority=10,ip,dl_src=02:11:00:00:{h:02x}:{l:02x},dl_dst=02:12:00:00:{h:02x}:{l:02x},nw_src=172.16.{h}.{l},nw_dst=172.17.{h}.{l},actions=output:2")
print("priority=10,ip,in_port=1,actions=output:2")
P
ovs-ofctl -O OpenFlow14 del-flows unix:$D/br0.mgmt; ovs-ofctl -O OpenFlow14 add-flows unix:$D/br0.mgmt $D/rules
set_ add-port br0 p0 -- set interface p0 type=dpdk "options:dpdk-devargs=\"net_pcap0,rx_pcap=$D/slf.pcap,infinite_rx=1\"" ofport_request=1 || { tail -20 $D/sw.log; exit 1; }
set_ get interface p0 error; set_ get interface p1 error
sleep 2
for i in 1 2 3; do
ovs-appctl -t $D/sw.ctl dpif-netdev/pmd-stats-clear
T=$(grep -l pmd /proc/$SW/task/*/comm | head -1); T=$(dirname $T); a=$(cut -d' ' -f1 $T/schedstat)
sleep 2
b=$(cut -d' ' -f1 $T/schedstat)
ovs-appctl -t $D/sw.ctl dpif-netdev/pmd-stats-show | head -20 > $D/st
p=$(grep 'packets received' $D/st | head -1 | grep -o '[0-9]*$')
echo "slf=$SLF rules=$RULES mode=$MODE ns/pkt=$(python3 -c "print(($b-$a)/$p)") packets=$p"
done
cat $D/st
ovs-appctl -t $D/sw.ctl dpctl/dump-flows 2>/dev/null | head -3
