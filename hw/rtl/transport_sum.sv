// The checksum of the transport header of a sliced packet, in four parts that are added and folded later:
// addresses, fixed header, options, and token with what the packet's length decides. Sums of masked words
// without order, so that a tool makes trees of them.
`default_nettype none

module transport_sum (
    input  wire logic [767:0] head,
    input  wire logic         six,
    input  wire logic [1:0]   tags,
    input  wire logic [4:0]   place,
    input  wire logic         tcp,
    input  wire logic [3:0]   words,
    input  wire logic [5:0]   at_place,
    input  wire logic [159:0] from_l4,
    input  wire logic [63:0]  token,

    output wire logic [19:0]  addresses,
    output wire logic [19:0]  fixed,
    output wire logic [20:0]  options,
    output wire logic [18:0]  rest
);
    function automatic logic [15:0] swapped(input logic [15:0] word);
        swapped = {word[7:0], word[15:8]};
    endfunction

    // IPv6 has its addresses from byte 8 of its header on, IPv4 from byte 12.
    logic [255:0] from_eight;
    assign from_eight = tags == 2'd0 ? head[176 +: 256] : tags == 2'd1 ? head[208 +: 256] : head[240 +: 256];

    // The masked words.
    logic [15:0] a [16], f [9], o [20];
    genvar g;
    generate
        for (g = 0; g < 16; g = g + 1) begin : g_address_words
            assign a[g] = six || (g >= 2 && g < 6) ? swapped(from_eight[16*g +: 16]) : 16'd0;
        end
        // Ports of both; of TCP all but the checksum; the length of UDP is that of the sliced packet.
        for (g = 0; g < 9; g = g + 1) begin : g_fixed_words
            assign f[g] = tcp || g < 2 ? swapped(from_l4[16*(g == 8 ? 9 : g) +: 16]) : 16'd0;
        end
        // Options stand from place 10 on at the earliest, and up to place 19 in 96 bytes.
        for (g = 0; g < 10; g = g + 1) begin : g_option_words
            logic behind, ahead;
            assign behind   = tcp && place <= 5'(5 + g);
            assign ahead    = at_place > 6'(10 + g);
            assign o[2*g]   = behind && ahead ? swapped(head[8*(54 + 4*g) +: 16]) : 16'd0;
            assign o[2*g+1] = behind && ahead ? swapped(head[8*(56 + 4*g) +: 16]) : 16'd0;
        end
    endgenerate

    assign addresses = 20'(a[0]) + 20'(a[1]) + 20'(a[2]) + 20'(a[3]) + 20'(a[4]) + 20'(a[5]) + 20'(a[6]) + 20'(a[7])
                       + 20'(a[8]) + 20'(a[9]) + 20'(a[10]) + 20'(a[11]) + 20'(a[12]) + 20'(a[13]) + 20'(a[14]) + 20'(a[15]);
    assign fixed     = 20'(f[0]) + 20'(f[1]) + 20'(f[2]) + 20'(f[3]) + 20'(f[4]) + 20'(f[5]) + 20'(f[6]) + 20'(f[7]) + 20'(f[8]);
    assign options   = 21'(o[0]) + 21'(o[1]) + 21'(o[2]) + 21'(o[3]) + 21'(o[4]) + 21'(o[5]) + 21'(o[6]) + 21'(o[7])
                       + 21'(o[8]) + 21'(o[9]) + 21'(o[10]) + 21'(o[11]) + 21'(o[12]) + 21'(o[13]) + 21'(o[14]) + 21'(o[15])
                       + 21'(o[16]) + 21'(o[17]) + 21'(o[18]) + 21'(o[19]);
    // Protocol and length, header and token of eight bytes; in UDP the length counts twice.
    assign rest      = 19'(token[63:48]) + 19'(token[47:32]) + 19'(token[31:16]) + 19'(token[15:0])
                       + (tcp ? 19'd14 + {13'd0, words, 2'd0} : 19'd49);

`ifdef VERILATOR
    // For lint alone: a simulator would compute it at every change of every bit.
    logic unused;
    assign unused = &{1'b0, head, from_l4};
`endif
endmodule

`default_nettype wire
