// Bytes that have not arrived decide nothing: two frames that are the same up to `avail` are the same to the
// parser.
`default_nettype none

module parser_proof (
    input wire logic [767:0] one,
    input wire logic [767:0] other,
    input wire logic [7:0]   avail
);
    logic [1:0]   ip, six, fine, known, shallow, tcp, many, settled;
    logic [1:0]   tags [2];
    logic [3:0]   ip_words [2], words [2];
    logic [4:0]   place [2];
    logic [5:0]   at_place [2];
    logic [16:0]  ip_end [2];
    logic [15:0]  left [2], first_word [2], length_word [2], ip_sum [2], l4_sum [2];
    logic [159:0] from_l4 [2];
    logic [95:0]  have;
    assign have = ~({96{1'b1}} << avail);
    genvar n;
    generate
        for (n = 0; n < 2; n = n + 1) begin : g_parser
            ip_parser network (
                .head(n == 0 ? one[255:0] : other[255:0]), .fine(fine[n]), .six(six[n]), .tags(tags[n]), .ip_words(ip_words[n]),
                .place(place[n]), .ip_end(ip_end[n]), .left(left[n]), .first_word(first_word[n]), .length_word(length_word[n]),
                .known(known[n]), .tcp(tcp[n])
            );
            transport_parser transport (
                .head(n == 0 ? one : other), .have(have), .fine(fine[n]), .six(six[n]), .tags(tags[n]), .place(place[n]),
                .left(left[n]), .known(known[n]), .tcp(tcp[n]), .ip(ip[n]), .ip_sum(ip_sum[n]), .many(many[n]),
                .shallow(shallow[n]), .words(words[n]), .at_place(at_place[n]), .l4_sum(l4_sum[n]), .from_l4(from_l4[n]),
                .settled(settled[n])
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
            assert (six[0] == six[1] && tags[0] == tags[1] && place[0] == place[1] && ip_end[0] == ip_end[1]);
            assert (many[0] == many[1] && settled[0] == settled[1] && ip_words[0] == ip_words[1] && left[0] == left[1]);
            assert (first_word[0] == first_word[1] && length_word[0] == length_word[1] && (six[0] || ip_sum[0] == ip_sum[1]));
            // Places are bytes, and what is left of the packet begins at the transport header.
            assert (place[0] == 5'(tags[0]) + 5'(ip_words[0]) && 4*8'(place[0]) + 8'd14 <= avail);
            assert (ip_end[0] == 17'd14 + {10'd0, place[0], 2'd0} + {1'b0, left[0]});
        end
        if (shallow[0]) begin
            assert (ip[0] && tcp[0] == tcp[1] && words[0] == words[1] && at_place[0] == at_place[1] && l4_sum[0] == l4_sum[1]);
            assert (17'd14 + {9'd0, at_place[0], 2'd0} <= ip_end[0] && at_place[0] >= 6'(place[0]) + 6'd2);
            assert (place[0] >= 5'd5 && (tcp[0] || ip_end[0] == 17'd14 + {10'd0, place[0], 2'd0} + {1'b0, from_l4[0][39:32], from_l4[0][47:40]}));
        end
    end
endmodule
