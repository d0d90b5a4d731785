// From the network to the functions: packets worth slicing go on as headers and token, their payload goes to
// the memory (NFSlicer, III-C a, Fig. 16, upper half). Three cycles from a beat to the same beat at the
// output: two registers, in which the first 96 bytes of a frame come together, and the register of the
// output. No cycle is lost between frames.
//
// The payload is not waited for. A frame that turns out damaged when its headers have gone (cut off, `tuser`,
// more than an entry holds) has its entry marked; a packet that comes back for it is dropped.
`default_nettype none

module slice_ingress #(
    parameter int DATA_W   = 256,
    parameter int MAX_PAYLOAD = 1454,
    parameter int ROWS     = 47,
    parameter int ENTRY_W  = 8,
    parameter int RECORD_W = 80,
    parameter int LENGTH_W = 12,
    parameter int BYTES   = DATA_W / 8,
    parameter int ROW_W   = $clog2(ROWS + 1)
) (
    input  wire logic                clk,
    input  wire logic                rst,

    // `enable`: packets are sliced. `guards`: those that aren't have the mark taken off, since they could be
    // taken for sliced ones.
    input  wire logic                enable,
    input  wire logic                guards,
    input  wire logic [15:0]         threshold,
    // Policy for packets that come with the mark and are not sliced: drop them, or give them this DSCP.
    input  wire logic                marked_drop,
    input  wire logic [5:0]          marked_dscp,

    input  wire logic                s_axis_tvalid,
    output wire logic                s_axis_tready,
    input  wire logic [DATA_W-1:0]   s_axis_tdata,
    input  wire logic [BYTES-1:0]    s_axis_tkeep,
    input  wire logic                s_axis_tlast,
    input  wire logic                s_axis_tuser,

    output wire logic                m_axis_tvalid,
    input  wire logic                m_axis_tready,
    output wire logic [DATA_W-1:0]   m_axis_tdata,
    output wire logic [BYTES-1:0]    m_axis_tkeep,
    output wire logic                m_axis_tlast,
    output wire logic                m_axis_tuser,

    output wire logic                take,
    output wire logic [RECORD_W-1:0] take_record,
    // A cycle after `take`.
    output wire logic [15:0]         take_sum,
    input  wire logic                take_granted,
    input  wire logic [ENTRY_W-1:0]  take_entry,
    input  wire logic [63:0]         take_token,
    output wire logic                stored,
    output wire logic                stored_good,
    output wire logic [LENGTH_W-1:0] stored_bytes,
    output wire logic [63:0]         probe_token,
    input  wire logic                probe_ours,

    output wire logic                row_wen,
    output wire logic [ENTRY_W-1:0]  row_entry,
    output wire logic [ROW_W-1:0]    row,
    output wire logic [DATA_W-1:0]   row_data,

    // Sliced, below the threshold, of another kind, no room, no entry, remarked, dropped, damaged, token from
    // the network.
    output wire logic [8:0]          events
);
    localparam int BEAT_W = $clog2(BYTES);
    localparam logic [15:0] MOST_BEATS = 16'(17'h1ffff >> BEAT_W);

    // At 256 bits the checksum of the transport header, all of the payload and the token stand behind the
    // first beat: what they need of the decision is registered.
    localparam logic LATER = DATA_W == 256;

    function automatic logic [7:0] bytes_of(input logic [BYTES-1:0] keep);
        integer n;
        bytes_of = 8'd0;
        for (n = 0; n < BYTES; n = n + 1) bytes_of = bytes_of + 8'(keep[n]);
    endfunction

    // Ones' complement addition.
    function automatic logic [15:0] fold(input logic [31:0] sum);
        logic [16:0] once;
        once = {1'b0, sum[15:0]} + {1'b0, sum[31:16]};
        fold = once[15:0] + 16'(once[16]);
    endfunction

    // Two registers: `new` has the younger beat, `old` the one that leaves.
    logic              new_valid_reg, new_last_reg, new_user_reg;
    logic              old_valid_reg, old_last_reg, old_user_reg;
    logic [DATA_W-1:0] new_data_reg, old_data_reg;
    logic [BYTES-1:0]  new_keep_reg, old_keep_reg;
    logic [7:0]        old_count_reg;
    logic              out_ready, looks_ahead, old_go, new_go, first_reg, begins_frame;

    // A beat leaves when the two behind it are there, or the frame has ended.
    assign looks_ahead   = old_last_reg || (new_valid_reg && (new_last_reg || s_axis_tvalid));
    assign old_go        = old_valid_reg && looks_ahead && out_ready;
    assign new_go        = new_valid_reg && (!old_valid_reg || old_go);
    assign s_axis_tready = !new_valid_reg || !old_valid_reg || out_ready;
    // The beat in `new` begins a frame.
    assign begins_frame  = old_valid_reg ? old_last_reg : first_reg;

    // On its way from `new` to `old`, a first beat is looked at: Ethernet and IP are in its 32 bytes. The
    // findings stay for the whole frame.
    logic        p_fine, p_six, p_known, p_tcp, fine_reg, six, known_reg, tcp;
    logic [1:0]  p_tags, tags;
    logic [3:0]  p_ip_words, ip_words_reg;
    logic [4:0]  p_place, place;
    logic [16:0] p_ip_end, ip_end, tail_byte;
    logic [15:0] p_left, p_first_word, p_length_word, left_reg, first_word, length_word;
    logic [17:0] ip_begun_sum_reg;
    ip_parser network (
        .head(new_data_reg[255:0]), .fine(p_fine), .six(p_six), .tags(p_tags), .ip_words(p_ip_words), .place(p_place),
        .ip_end(p_ip_end), .left(p_left), .first_word(p_first_word), .length_word(p_length_word), .known(p_known), .tcp(p_tcp)
    );

    always_ff @(posedge clk) begin
        if (old_go) old_valid_reg <= 1'b0;
        if (new_go) begin
            old_valid_reg <= 1'b1;
            old_data_reg  <= new_data_reg;
            old_keep_reg  <= new_keep_reg;
            old_count_reg <= bytes_of(new_keep_reg);
            old_last_reg  <= new_last_reg;
            old_user_reg  <= new_user_reg;
            new_valid_reg <= 1'b0;
            if (begins_frame) begin
                {fine_reg, six, tags, ip_words_reg, place, known_reg, tcp} <= {p_fine, p_six, p_tags, p_ip_words, p_place, p_known, p_tcp};
                {ip_end, left_reg, first_word, length_word} <= {p_ip_end, p_left, p_first_word, p_length_word};
                tail_byte <= p_ip_end - 17'd1;
                // The part of the new checksum of IPv4 that all cases share.
                ip_begun_sum_reg <= 18'(16'(~p_first_word)) + 18'({p_first_word[15:8], 6'd0, p_first_word[1:0]})
                                    + 18'(16'(~p_length_word));
            end
        end
        if (s_axis_tvalid && s_axis_tready) begin
            new_valid_reg <= 1'b1;
            new_data_reg  <= s_axis_tdata;
            new_keep_reg  <= s_axis_tkeep;
            new_last_reg  <= s_axis_tlast;
            new_user_reg  <= s_axis_tuser;
        end
        if (rst) begin
            new_valid_reg <= 1'b0;
            old_valid_reg <= 1'b0;
        end
    end

    // The start of the frame: as much as is there of 96 bytes.
    logic [3*DATA_W-1:0] window;
    logic [255:0]        have;
    logic                whole, two, three;
    assign two    = !old_last_reg;
    assign three  = two && !new_last_reg;
    assign window = {s_axis_tdata, new_data_reg, old_data_reg};
    assign have   = 256'({three ? s_axis_tkeep : '0, two ? new_keep_reg : '0, old_keep_reg});
    assign whole  = old_last_reg || new_last_reg || s_axis_tlast;

    logic         ip, shallow, many, settled;
    logic [3:0]   words;
    logic [5:0]   at_place;
    logic [15:0]  ip_sum, l4_sum;
    logic [159:0] from_l4;
    transport_parser transport (
        .head(window[767:0]), .have(have[95:0]), .fine(fine_reg), .six(six), .tags(tags), .place(place), .left(left_reg),
        .known(known_reg), .tcp(tcp), .ip(ip), .ip_sum(ip_sum), .many(many), .shallow(shallow), .words(words),
        .at_place(at_place), .l4_sum(l4_sum), .from_l4(from_l4), .settled(settled)
    );
    logic [7:0] l3, l4, at;
    logic [5:0] dscp;
    assign l3   = 8'd14 + {4'd0, tags, 2'd0};
    assign l4   = 8'd14 + {1'b0, place, 2'd0};
    assign at   = 8'd14 + {at_place, 2'd0};
    assign dscp = six ? first_word[11:6] : first_word[7:2];

    // The decision, at the first beat.
    logic        of_kind, worth, room, wanted, sliced, marked, remarked, thrown;
    logic [15:0] parked;
    assign parked   = left_reg - {10'd0, words, 2'd0};
    assign of_kind  = shallow && !many && at_place <= 6'd20
                      && (!whole || (tail_byte < 17'(3*BYTES) && have[tail_byte[7:0]]));
    assign worth    = ip_end >= {1'b0, threshold} && !old_last_reg;
    assign room     = parked <= 16'(MAX_PAYLOAD);
    assign wanted   = enable && of_kind && worth && room && parked > 16'd8;
    assign take     = old_go && first_reg && wanted;
    assign sliced   = wanted && take_granted;
    assign marked   = guards && ip && dscp == 6'd63 && !sliced;
    assign thrown   = marked && marked_drop;
    assign remarked = marked && !marked_drop;

    // Fields of the packet, sliced or given another DSCP.
    logic [15:0] new_first, new_length, new_ip_sum, sliced_length, sliced_ip_sum, other_ip_sum, covered;
    logic [5:0]  new_dscp;
    logic [18:0] ip_begun;
    assign new_dscp        = sliced ? 6'd63 : marked_dscp;
    assign new_first       = six ? {first_word[15:12], new_dscp, first_word[5:0]} : {first_word[15:8], new_dscp, first_word[1:0]};
    assign covered         = 16'd8 + {10'd0, words, 2'd0};
    assign sliced_length   = covered + (six ? 16'd0 : {10'd0, ip_words_reg, 2'd0});
    assign new_length      = sliced ? sliced_length : length_word;
    // That of IPv4, in which the DSCP stands two bits up.
    assign ip_begun        = 19'(ip_begun_sum_reg) + 19'(16'(~ip_sum));
    assign sliced_ip_sum   = ~fold(32'(ip_begun) + 32'd252 + 32'(sliced_length));
    assign other_ip_sum    = ~fold(32'(ip_begun) + 32'({marked_dscp, 2'd0}) + 32'(length_word));
    assign new_ip_sum      = sliced ? sliced_ip_sum : other_ip_sum;

    // Checksum of the transport header over addresses, protocol, length, header and token.
    logic [19:0] s_addresses, s_fixed, addresses_reg, fixed_reg;
    logic [20:0] s_options, options_reg;
    logic [18:0] s_rest, rest_reg;
    logic        no_sum_reg, c_no_sum;
    logic [31:0] sum;
    logic [15:0] sum_sliced, new_l4_sum;
    transport_sum parts (
        .head(window[767:0]), .six(six), .tags(tags), .place(place), .tcp(tcp), .words(words), .at_place(at_place),
        .from_l4(from_l4), .token(take_token), .addresses(s_addresses), .fixed(s_fixed), .options(s_options), .rest(s_rest)
    );
    assign sum        = LATER || !first_reg ? 32'(addresses_reg) + 32'(fixed_reg) + 32'(options_reg) + 32'(rest_reg)
                                            : 32'(s_addresses) + 32'(s_fixed) + 32'(s_options) + 32'(s_rest);
    assign c_no_sum   = LATER || !first_reg ? no_sum_reg : l4_sum == 16'd0;
    assign sum_sliced = ~fold(sum);
    assign new_l4_sum = tcp ? sum_sliced : c_no_sum ? 16'd0 : sum_sliced == 16'd0 ? 16'hffff : sum_sliced;

    // Record: what the egress needs. An IPv6 packet has no header checksum to be found again. The checksum of
    // the sliced packet follows a cycle later.
    assign take_record = {at, dscp, six, tcp, parked, l4_sum, six ? 16'hffff : ip_sum, six ? 16'hffff : sliced_ip_sum};
    assign take_sum    = new_l4_sum;

    // The decision, for the beats that follow.
    logic               cut_reg, remark_reg, thrown_reg, ip_reg, ours_reg;
    logic [7:0]         at_reg;
    logic [63:0]        token_reg;
    logic [15:0]        f_first_reg, f_length_reg, f_ip_sum_reg, f_covered_reg;
    logic [ENTRY_W-1:0] entry_reg;
    logic [15:0]        beat_reg;
    logic [55:0]        tail_reg;
    logic               cut, remark, throw, is_ip;
    logic [7:0]         c_at;
    logic [63:0]        c_token;
    logic [15:0]        f_first, f_length, f_ip_sum, f_covered, beat;

    assign cut       = first_reg ? sliced : cut_reg;
    assign remark    = first_reg ? remarked : remark_reg;
    assign throw     = first_reg ? thrown : thrown_reg;
    assign is_ip     = first_reg ? ip : ip_reg;
    // Anywhere behind the first beat: its place makes no difference there.
    assign c_at      = !first_reg ? at_reg : LATER ? 8'd96 : at;
    assign c_token   = LATER || !first_reg ? token_reg : take_token;
    assign f_first   = first_reg ? new_first : f_first_reg;
    assign f_length  = first_reg ? new_length : f_length_reg;
    assign f_ip_sum  = first_reg ? new_ip_sum : f_ip_sum_reg;
    assign f_covered = LATER || !first_reg ? f_covered_reg : covered;
    assign beat      = first_reg ? 16'd0 : beat_reg;

    // The beat as it leaves.
    logic [DATA_W-1:0] out_data, built;
    logic [BYTES-1:0]  out_keep, kept;
    logic              out_valid, out_last, out_user;
    logic [16:0]       base;
    logic [15:0]       word, token_word;
    logic [16:0]       offset;
    logic [1:0]        token_place;
    integer            i;
    assign base = 17'(beat) << BEAT_W;
    always_comb begin
        built = '0;
        for (i = 0; i < BYTES / 2; i = i + 1) begin
            offset     = base + 17'(2*i);
            token_place = offset[2:1] - c_at[2:1];
            token_word = c_token[{2'd3 - token_place, 4'd0} +: 16];
            word       = {old_data_reg[16*i +: 8], old_data_reg[16*i+8 +: 8]};
            if (cut || remark) begin
                if (offset == 17'(l3)) word = f_first;
                if (!six && offset == 17'(l3) + 17'd10) word = f_ip_sum;
            end
            if (cut) begin
                if (offset == 17'(l3) + (six ? 17'd4 : 17'd2)) word = f_length;
                if (!tcp && offset == 17'(l4) + 17'd4) word = f_covered;
                if (offset == 17'(l4) + (tcp ? 17'd16 : 17'd6)) word = new_l4_sum;
                if (offset >= 17'(c_at)) word = token_word;
                if (offset >= 17'(c_at) + 17'd8) word = 16'd0;
            end
            built[16*i +: 8]   = word[15:8];
            built[16*i+8 +: 8] = word[7:0];
        end
        out_data = built;
    end
    always_comb begin
        kept = '0;
        for (i = 0; i < BYTES; i = i + 1) begin
            kept[i] = cut ? base + 17'(i) < 17'(c_at) + 17'd8 : old_keep_reg[i];
        end
        out_keep = kept;
    end

    // The last eight bytes of the IP packet, of frames that are not sliced: no token may come from the
    // network.
    logic [DATA_W+55:0] joined;
    logic [BEAT_W-1:0]  tail_at;
    logic               at_tail, ours;
    logic [63:0]        tail;
    assign joined    = {old_data_reg, first_reg ? 56'd0 : tail_reg};
    assign tail_at   = tail_byte[BEAT_W-1:0];
    assign at_tail   = is_ip && !cut && 16'(tail_byte >> BEAT_W) == beat && old_keep_reg[tail_at];
    assign tail      = joined[{1'b0, tail_at, 3'd0} +: 64];
    assign probe_token = {tail[7:0], tail[15:8], tail[23:16], tail[31:24], tail[39:32], tail[47:40], tail[55:48], tail[63:56]};
    assign ours = (!first_reg && ours_reg) || (at_tail && probe_ours);

    assign out_valid = old_go && !throw && (!cut || base < 17'(c_at) + 17'd8);
    assign out_last  = cut ? base + 17'(BYTES) >= 17'(c_at) + 17'd8 : old_last_reg;
    // A sliced frame leaves before anybody knows if the rest of it is good.
    assign out_user  = cut ? 1'b0 : old_user_reg || ours;

    // The payload goes to the memory as it stands in the beats, the first of them with the end of the
    // headers.
    logic [15:0]        row_long;
    logic [16:0]        frame_bytes;
    logic               fits;
    assign row_long     = beat - (16'(c_at) >> BEAT_W);
    assign row_wen      = old_go && cut && base + 17'(BYTES) > 17'(c_at) && row_long < 16'(ROWS);
    assign row          = row_long[ROW_W-1:0];
    assign row_entry    = first_reg ? take_entry : entry_reg;
    assign row_data     = old_data_reg;
    assign frame_bytes  = base + 17'(old_count_reg);
    assign fits         = frame_bytes - 17'(c_at) <= 17'(MAX_PAYLOAD) && row_long < 16'(ROWS);
    assign stored       = old_go && cut && old_last_reg;
    assign stored_good  = !old_user_reg && frame_bytes >= ip_end && fits;
    assign stored_bytes = LENGTH_W'(frame_bytes - 17'(c_at));

    always_ff @(posedge clk) begin
        if (old_go) begin
            first_reg <= old_last_reg;
            // A frame without an end doesn't make the count go round.
            beat_reg  <= beat == MOST_BEATS ? beat : beat + 16'd1;
            tail_reg  <= old_data_reg[DATA_W-1 -: 56];
            ours_reg  <= ours;
            if (first_reg) begin
                {cut_reg, remark_reg, thrown_reg, ip_reg} <= {sliced, remarked, thrown, ip};
                {at_reg, token_reg, entry_reg, no_sum_reg} <= {at, take_token, take_entry, l4_sum == 16'd0};
                {f_first_reg, f_length_reg, f_ip_sum_reg, f_covered_reg} <= {new_first, new_length, new_ip_sum, covered};
                {addresses_reg, fixed_reg, options_reg, rest_reg} <= {s_addresses, s_fixed, s_options, s_rest};
            end
        end
        if (rst) first_reg <= 1'b1;
    end

    logic begins;
    assign begins    = old_go && first_reg;
    // The last of them first.
    assign events = {
        old_go && at_tail && probe_ours && !(!first_reg && ours_reg),
        stored && !stored_good,
        begins && thrown,
        begins && remarked,
        begins && !sliced && !marked && wanted,
        begins && !sliced && !marked && enable && of_kind && worth && parked > 16'd8 && !room,
        begins && !sliced && !marked && (!enable || !of_kind),
        begins && !sliced && !marked && enable && of_kind && (!worth || parked <= 16'd8),
        begins && sliced
    };

    skid_buffer #(.WIDTH(DATA_W + BYTES + 2)) output_register (
        .clk(clk), .rst(rst), .s_valid(out_valid), .s_ready(out_ready), .s_data({out_user, out_last, out_keep, out_data}),
        .m_valid(m_axis_tvalid), .m_ready(m_axis_tready), .m_data({m_axis_tuser, m_axis_tlast, m_axis_tkeep, m_axis_tdata})
    );

`ifdef VERILATOR
    // For lint alone: a simulator would compute it at every change of every bit.
    logic unused;
    assign unused = &{1'b0, settled, stored_bytes, have, window};
`endif
endmodule

`default_nettype wire
