// The transport header, given what `ip_parser` says: TCP with options or UDP, within the first 96 bytes of a
// frame; and the parts of the IP header that may stand behind the first 32. It reads no byte that has not
// arrived: `have` has a bit for each that did, without gaps. Places are as in `ip_parser`: p is byte 4p + 14.
`default_nettype none

module transport_parser (
    input  wire logic [767:0] head,
    input  wire logic [95:0]  have,

    input  wire logic         fine,
    input  wire logic         six,
    input  wire logic [1:0]   tags,
    input  wire logic [4:0]   place,
    input  wire logic [15:0]  left,
    input  wire logic         known,
    input  wire logic         tcp,

    // The IP header is there; the checksum of IPv4; sent to many, by Ethernet or by IP.
    output wire logic         ip,
    output wire logic [15:0]  ip_sum,
    output wire logic         many,
    // A transport header that is understood: whole, with a length that can be; its length in words, the place
    // of the payload, and its checksum.
    output wire logic         shallow,
    output wire logic [3:0]   words,
    output wire logic [5:0]   at_place,
    output wire logic [15:0]  l4_sum,
    // Its first 20 bytes.
    output wire logic [159:0] from_l4,
    // Enough has arrived to say whether `shallow` will be true.
    output wire logic         settled
);
    // From place 0 on; behind the 96 bytes nothing has arrived.
    logic [1183:0] from_zero;
    logic [147:0]  have_zero;
    assign from_zero = {512'd0, head[767:96]};
    assign have_zero = {64'd0, have[95:12]};

    // Byte 10 of an IPv4 header and the one behind it, and the first byte of the destination.
    assign ip_sum = tags == 2'd0 ? {head[192 +: 8], head[200 +: 8]} : tags == 2'd1 ? {head[224 +: 8], head[232 +: 8]}
                                                                    : {head[256 +: 8], head[264 +: 8]};
    logic [7:0] to_four, to_six;
    assign to_four = tags == 2'd0 ? head[240 +: 8] : tags == 2'd1 ? head[272 +: 8] : head[304 +: 8];
    assign to_six  = tags == 2'd0 ? head[304 +: 8] : tags == 2'd1 ? head[336 +: 8] : head[368 +: 8];
    assign many    = head[0] || (six ? to_six == 8'hff : to_four >= 8'd224);

    // Bytes 4p + 12 to 4p + 33: what ends where the transport header begins, and its first 20 bytes.
    logic [175:0] bytes_there;
    logic [21:0]  bytes_have;
    assign bytes_there = from_zero[{1'b0, place, 5'd0} +: 176];
    assign bytes_have  = have_zero[{1'b0, place, 2'd0} +: 22];
    assign from_l4     = bytes_there[175:16];
    assign ip          = fine && bytes_have[1];

    logic        reached;
    logic [15:0] udp_length;
    assign words      = tcp ? from_l4[103:100] : 4'd2;
    assign udp_length = {from_l4[32 +: 8], from_l4[40 +: 8]};
    assign reached    = tcp ? bytes_have[21] : bytes_have[9];
    assign at_place   = 6'(place) + 6'(words);
    assign l4_sum     = tcp ? {from_l4[128 +: 8], from_l4[136 +: 8]} : {from_l4[48 +: 8], from_l4[56 +: 8]};
    // A header doesn't reach beyond the packet; that of UDP says how long the packet is.
    assign shallow    = known && reached && (tcp ? words >= 4'd5 : udp_length == left)
                        && (left[15:6] != 10'd0 || {words, 2'd0} <= left[5:0]);
    // 20 bytes of TCP that would end behind the 96 bytes are never reached.
    assign settled    = reached || (tcp && place > 5'd15);

`ifdef VERILATOR
    // For lint alone: a simulator would compute it at every change of every bit.
    logic unused;
    assign unused = &{1'b0, head, have, bytes_there, bytes_have};
`endif
endmodule

`default_nettype wire
