// The Ethernet and IP headers of a frame, from its first 32 bytes: up to two VLAN tags, IPv4 with options or
// IPv6. All that is said here needs no later byte, so that it can be found out while the rest still comes;
// `transport_parser` says what there is of it. Byte 0 of the frame is `head[7:0]`.
//
// Every header before the payload has a length of whole words of four bytes, but for the 14 bytes of
// Ethernet. So places are counted in such words: place p is byte 4p + 14.
`default_nettype none

module ip_parser (
    input  wire logic [255:0] head,

    // The EtherType is that of IP, and the IP header can be.
    output wire logic         fine,
    output wire logic         six,
    // VLAN tags: the place at which the IP header begins.
    output wire logic [1:0]   tags,
    // Length of the IP header in words, and the place of the transport header.
    output wire logic [3:0]   ip_words,
    output wire logic [4:0]   place,
    // End of the IP packet, in bytes from the start of the frame; and in bytes from the transport header on,
    // which is right if `fine`.
    output wire logic [16:0]  ip_end,
    output wire logic [15:0]  left,
    // First two bytes of the IP header, and its length field.
    output wire logic [15:0]  first_word,
    output wire logic [15:0]  length_word,
    // TCP or UDP, and no fragment.
    output wire logic         known,
    output wire logic         tcp
);
    function automatic logic is_vlan(input logic [15:0] kind);
        is_vlan = kind == 16'h8100 || kind == 16'h88a8 || kind == 16'h9100;
    endfunction

    logic [15:0] kind [3];
    genvar g;
    generate
        for (g = 0; g < 3; g = g + 1) begin : g_kinds
            assign kind[g] = {head[96+32*g +: 8], head[104+32*g +: 8]};
        end
    endgenerate

    logic [15:0] ethertype;
    assign tags      = !is_vlan(kind[0]) ? 2'd0 : !is_vlan(kind[1]) ? 2'd1 : 2'd2;
    assign ethertype = tags == 2'd0 ? kind[0] : tags == 2'd1 ? kind[1] : kind[2];

    // The first ten bytes of the IP header.
    logic [79:0] from_ip;
    assign from_ip = tags == 2'd0 ? head[112 +: 80] : tags == 2'd1 ? head[144 +: 80] : head[176 +: 80];

    logic [3:0]  ihl;
    logic [15:0] fragment_word;
    logic [7:0]  protocol;
    logic        four;
    assign ihl           = from_ip[3:0];
    assign six           = ethertype == 16'h86dd;
    assign first_word    = {from_ip[7:0], from_ip[15:8]};
    assign length_word   = six ? {from_ip[32 +: 8], from_ip[40 +: 8]} : {from_ip[16 +: 8], from_ip[24 +: 8]};
    assign fragment_word = {from_ip[48 +: 8], from_ip[56 +: 8]};
    assign protocol      = six ? from_ip[48 +: 8] : from_ip[72 +: 8];
    assign four          = ethertype == 16'h0800 && first_word[15:12] == 4'd4 && ihl >= 4'd5
                           && length_word >= {10'd0, ihl, 2'd0};
    assign fine          = four || (six && first_word[15:12] == 4'd6);
    assign ip_words      = six ? 4'd10 : ihl;
    assign place         = 5'(tags) + 5'(ip_words);
    assign ip_end        = 17'd14 + {13'd0, tags, 2'd0} + {1'b0, length_word} + (six ? 17'd40 : 17'd0);
    assign left          = length_word - (six ? 16'd0 : {10'd0, ihl, 2'd0});
    assign tcp           = protocol == 8'd6;
    assign known         = fine && (tcp || protocol == 8'd17) && (six || (fragment_word & 16'h3fff) == 16'd0);

`ifdef VERILATOR
    // For lint alone: a simulator would compute it at every change of every bit.
    logic unused;
    assign unused = &{1'b0, head, from_ip};
`endif
endmodule

`default_nettype wire
