// The headers of a frame, from its first 96 bytes, in one cycle: Ethernet with up to two VLAN tags, IPv4 with
// options or IPv6 without extension headers, TCP with options or UDP. It reads no byte that has not arrived:
// `avail` says how many there are. Byte 0 of the frame is `head[7:0]`. All offsets are even, since every
// header before has an even length.
`default_nettype none

module header_parser (
    input  wire logic [767:0] head,
    input  wire logic [7:0]   avail,

    // The EtherType has arrived and is that of IP, and the IP header is there and can be.
    output wire logic         ip,
    output wire logic         six,
    output wire logic [7:0]   l3,
    output wire logic [7:0]   l4,
    // End of the IP packet, in bytes from the start of the frame.
    output wire logic [16:0]  ip_end,
    output wire logic [5:0]   dscp,
    // First two bytes of the IP header, its length field, and the checksum of IPv4.
    output wire logic [15:0]  first_word,
    output wire logic [15:0]  length_word,
    output wire logic [15:0]  ip_sum,
    // A transport header that is understood: TCP or UDP, no fragment, whole, with a length that can be.
    output wire logic         shallow,
    output wire logic         tcp,
    // Start of the payload.
    output wire logic [7:0]   at,
    // Checksum of the transport header.
    output wire logic [15:0]  l4_sum,
    // Sent to many, by Ethernet or by IP.
    output wire logic         many,
    // Enough has arrived to say whether `shallow` will be true.
    output wire logic         settled
);
    logic [15:0] word [0:47];
    genvar g;
    generate
        for (g = 0; g < 48; g = g + 1) begin : words
            assign word[g] = {head[16*g +: 8], head[16*g+8 +: 8]};
        end
    endgenerate

    function automatic logic is_vlan(input logic [15:0] kind);
        is_vlan = kind == 16'h8100 || kind == 16'h88a8 || kind == 16'h9100;
    endfunction

    logic [1:0]  tags;
    logic [15:0] ethertype;
    assign tags      = !is_vlan(word[6]) ? 2'd0 : !is_vlan(word[8]) ? 2'd1 : 2'd2;
    assign ethertype = tags == 2'd0 ? word[6] : tags == 2'd1 ? word[8] : word[10];
    assign l3        = 8'd14 + {4'd0, tags, 2'd0};

    // The IP header from its first word on, wherever it begins.
    logic [655:0] from_ip;
    assign from_ip = tags == 2'd0 ? head[112 +: 656] : tags == 2'd1 ? {32'd0, head[144 +: 624]} : {64'd0, head[176 +: 592]};

    logic [15:0] ip_word [0:5];
    generate
        for (g = 0; g < 6; g = g + 1) begin : ip_words
            assign ip_word[g] = {from_ip[16*g +: 8], from_ip[16*g+8 +: 8]};
        end
    endgenerate

    logic        four_ok, six_ok;
    logic [3:0]  ihl;
    logic [7:0]  protocol, ip_header;
    assign ihl         = from_ip[3:0];
    assign first_word  = {from_ip[7:0], from_ip[15:8]};
    assign ip_header   = six ? 8'd40 : {2'd0, ihl, 2'd0};
    assign six         = ethertype == 16'h86dd;
    assign length_word = six ? ip_word[2] : ip_word[1];
    assign ip_sum      = ip_word[5];
    assign four_ok     = ethertype == 16'h0800 && first_word[15:12] == 4'd4 && ihl >= 4'd5
                         && length_word >= {8'd0, ip_header} && avail >= l3 + ip_header;
    assign six_ok      = six && first_word[15:12] == 4'd6 && avail >= l3 + 8'd40;
    assign ip          = four_ok || six_ok;
    assign dscp        = six ? first_word[11:6] : first_word[7:2];
    assign l4          = l3 + ip_header;
    assign ip_end      = {9'd0, l3} + {1'b0, length_word} + (six ? 17'd40 : 17'd0);
    assign protocol    = six ? from_ip[48 +: 8] : from_ip[72 +: 8];

    // The transport header: what is needed of it lies within 20 bytes.
    logic [159:0] from_l4;
    logic         unused;
    assign unused  = &{1'b0, from_l4};
    assign from_l4 = from_ip[8*{2'd0, ip_header[5:2], 2'd0} +: 160];

    logic        fragment, udp, known, reached;
    logic [7:0]  header;
    logic [15:0] udp_length;
    assign fragment   = !six && (ip_word[3] & 16'h3fff) != 16'd0;
    assign tcp        = protocol == 8'd6;
    assign udp        = protocol == 8'd17;
    assign known      = ip && !fragment && (tcp || udp) && !(six && length_word == 16'd0);
    assign header     = tcp ? {2'd0, from_l4[103:100], 2'd0} : 8'd8;
    assign udp_length = {from_l4[32 +: 8], from_l4[40 +: 8]};
    assign reached    = avail >= l4 + (tcp ? 8'd20 : 8'd8);
    assign at         = l4 + header;
    assign l4_sum     = tcp ? {from_l4[128 +: 8], from_l4[136 +: 8]} : {from_l4[48 +: 8], from_l4[56 +: 8]};
    assign shallow    = known && reached && (tcp ? header >= 8'd20 : {1'b0, udp_length} + {9'd0, l4} == ip_end)
                        && {9'd0, at} <= ip_end;
    // A header that would end behind the 96 bytes is never reached.
    assign settled    = reached || l4 > 8'd76;
    assign many       = head[0] || (six ? from_ip[192 +: 8] == 8'hff : from_ip[128 +: 8] >= 8'd224);
endmodule

`default_nettype wire
