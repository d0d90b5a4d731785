// Bytes that have not arrived decide nothing: two frames that are the same up to `avail` are the same to the
// parser.
`default_nettype none

module parser_proof (
    input wire logic [767:0] one,
    input wire logic [767:0] other,
    input wire logic [7:0]   avail
);
    logic [1:0]  ip, six, shallow, tcp, many, settled;
    logic [7:0]  l3 [0:1], l4 [0:1], at [0:1];
    logic [16:0] ip_end [0:1];
    logic [5:0]  dscp [0:1];
    logic [15:0] first_word [0:1], length_word [0:1], ip_sum [0:1], l4_sum [0:1];
    genvar n;
    generate
        for (n = 0; n < 2; n = n + 1) begin : parser
            header_parser dut (
                .head(n == 0 ? one : other), .avail(avail), .ip(ip[n]), .six(six[n]), .l3(l3[n]), .l4(l4[n]), .ip_end(ip_end[n]),
                .dscp(dscp[n]), .first_word(first_word[n]), .length_word(length_word[n]), .ip_sum(ip_sum[n]),
                .shallow(shallow[n]), .tcp(tcp[n]), .at(at[n]), .l4_sum(l4_sum[n]), .many(many[n]), .settled(settled[n])
            );
        end
    endgenerate

    integer i;
    always_comb begin
        assume (avail <= 8'd96);
        for (i = 0; i < 96; i = i + 1) begin
            if (8'(i) < avail) assume (one[8*i +: 8] == other[8*i +: 8]);
        end
        assert (ip[0] == ip[1]);
        assert (shallow[0] == shallow[1]);
        if (ip[0]) begin
            assert (six[0] == six[1] && l3[0] == l3[1] && l4[0] == l4[1] && ip_end[0] == ip_end[1] && dscp[0] == dscp[1]);
            assert (many[0] == many[1] && settled[0] == settled[1]);
            assert (first_word[0] == first_word[1] && length_word[0] == length_word[1] && (six[0] || ip_sum[0] == ip_sum[1]));
        end
        if (shallow[0]) begin
            assert (tcp[0] == tcp[1] && at[0] == at[1] && l4_sum[0] == l4_sum[1]);
            assert (17'(at[0]) <= ip_end[0] && at[0] >= l4[0] + 8'd8 && l4[0] >= l3[0] + 8'd20 && !at[0][0]);
        end
    end
endmodule
